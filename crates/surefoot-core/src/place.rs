//! Where values belong: the part of placement that needs no tensors.
//!
//! An engine implements [`Place`] for its tensors and modules; tuples, vectors and options of
//! them follow. [`ensure`] moves what is not where a run needs it and says what it moved.

use std::fmt;

use crate::device::DeviceName;
use crate::engine::Engine;
use crate::fault::Fault;
use crate::precision::Dtype;

/// Where a run's values belong.
pub struct Target<E: Engine> {
    /// What the device is called.
    pub name: DeviceName,
    /// What work computes on.
    pub device: E::Handle,
    /// The dtype of float values.
    pub dtype: Dtype,
}

impl<E: Engine> Clone for Target<E> {
    fn clone(&self) -> Self {
        Self { name: self.name, device: self.device.clone(), dtype: self.dtype }
    }
}

impl<E: Engine> fmt::Debug for Target<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.name, self.dtype)
    }
}

/// What a value of guarded work is called in messages.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ValueName {
    /// The only input of the work.
    Input,
    /// One of several inputs, by its position in their tuple, from 0.
    NumberedInput(usize),
    /// A parameter of a module, by its path, such as `layers.0.weight`.
    Parameter(String),
}

impl ValueName {
    /// The name that it has at `position` of a tuple of inputs. One that has a number or a path of
    /// its own keeps it.
    fn numbered(self, position: usize) -> Self {
        match self {
            Self::Input => Self::NumberedInput(position),
            named => named,
        }
    }
}

impl fmt::Display for ValueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input => f.write_str("input"),
            Self::NumberedInput(position) => write!(f, "input {position}"),
            Self::Parameter(path) => f.write_str(path),
        }
    }
}

/// Where one value is.
pub struct Spot<E: Engine> {
    /// What it is called in messages.
    pub name: ValueName,
    /// The device it is on.
    pub device: E::Handle,
    /// Its element type.
    pub dtype: E::ElementType,
    /// Its shape.
    pub shape: Vec<usize>,
}

impl<E: Engine> Spot<E> {
    /// The place of an input of guarded work; a tuple numbers its inputs.
    pub fn input(device: E::Handle, dtype: E::ElementType, shape: Vec<usize>) -> Self {
        Self { name: ValueName::Input, device, dtype, shape }
    }

    /// The place of a module's parameter, which has a path.
    pub fn parameter(
        path: String,
        device: E::Handle,
        dtype: E::ElementType,
        shape: Vec<usize>,
    ) -> Self {
        Self { name: ValueName::Parameter(path), device, dtype, shape }
    }
}

impl<E: Engine> Clone for Spot<E> {
    fn clone(&self) -> Self {
        Self {
            name: self.name.clone(),
            device: self.device.clone(),
            dtype: self.dtype.clone(),
            shape: self.shape.clone(),
        }
    }
}

impl<E: Engine> PartialEq for Spot<E> {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
            && self.device == other.device
            && self.dtype == other.dtype
            && self.shape == other.shape
    }
}

impl<E: Engine> fmt::Display for Spot<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {:?} {:?} on {:?}", self.name, self.dtype, self.shape, self.device)
    }
}

impl<E: Engine> fmt::Debug for Spot<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Values that can be put on a device: tensors, and what is made of them.
pub trait Place<E: Engine>: Clone {
    /// Shows `visit` every tensor.
    fn survey(&self, visit: &mut dyn FnMut(Spot<E>));

    /// Puts every tensor on `target`, wherever it is now.
    #[must_use]
    fn place(self, target: &Target<E>) -> Self;
}

macro_rules! place_all_of {
    ($($field:ident $at:tt),+) => {
        impl<Eng: Engine, $($field: Place<Eng>),+> Place<Eng> for ($($field,)+) {
            fn survey(&self, visit: &mut dyn FnMut(Spot<Eng>)) {
                $(self.$at.survey(&mut |mut spot| {
                    spot.name = spot.name.numbered($at);
                    visit(spot);
                });)+
            }

            fn place(self, target: &Target<Eng>) -> Self {
                ($(self.$at.place(target),)+)
            }
        }
    };
}
place_all_of!(A 0);
place_all_of!(A 0, B 1);
place_all_of!(A 0, B 1, C 2);
place_all_of!(A 0, B 1, C 2, D 3);

impl<E: Engine, T: Place<E>> Place<E> for Vec<T> {
    fn survey(&self, visit: &mut dyn FnMut(Spot<E>)) {
        self.iter().for_each(|item| item.survey(visit));
    }

    fn place(self, target: &Target<E>) -> Self {
        self.into_iter().map(|item| item.place(target)).collect()
    }
}

impl<E: Engine, T: Place<E>> Place<E> for Option<T> {
    fn survey(&self, visit: &mut dyn FnMut(Spot<E>)) {
        self.iter().for_each(|item| item.survey(visit));
    }

    fn place(self, target: &Target<E>) -> Self {
        self.map(|item| item.place(target))
    }
}

impl<E: Engine> Place<E> for () {
    fn survey(&self, _visit: &mut dyn FnMut(Spot<E>)) {}

    fn place(self, _target: &Target<E>) -> Self {}
}

/// Moves everything in `value` that is not where `target` needs it, and says where that was.
pub fn ensure<E: Engine, P: Place<E>>(
    engine: &E,
    value: P,
    target: &Target<E>,
) -> Result<(P, Vec<Spot<E>>), Fault> {
    let mut moved = Vec::new();
    let mut refused = None;
    value.survey(&mut |spot| match engine.is_misplaced(&spot, target) {
        Ok(true) => moved.push(spot),
        Ok(false) => {}
        Err(fault) => drop(refused.get_or_insert(fault)),
    });
    match refused {
        Some(fault) => Err(fault),
        None if moved.is_empty() => Ok((value, moved)),
        None => Ok((value.place(target), moved)),
    }
}
