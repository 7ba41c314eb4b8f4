//! What the walk knows of a value: an imported name, a constant, a device, or an object made in
//! this file, whose state (device, dtype, whether it was ever written) changes as code runs.

use std::rc::Rc;

use ruff_text_size::{TextRange, TextSize};

use super::device::Device;

/// Index of an object in [`super::Facts::objects`].
pub(crate) type ObjectId = u32;

/// The kinds of object that matter to the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tensor,
    Model,
    /// A loss module such as `nn.CrossEntropyLoss()`.
    Criterion,
    Optimizer,
    Scheduler,
    Loader,
    Scaler,
    Dataset,
}

/// A floating dtype, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TorchDtype {
    Unknown,
    F64,
    F32,
    F16,
    Bf16,
    /// Integers and booleans.
    Other,
}

/// How many dimensions a tensor has, as far as it matters: a 0-dimensional one may live on the
/// CPU and still be combined with one on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dims {
    Unknown,
    Scalar,
    Some,
}

/// What changes about an object while code runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct State {
    pub(crate) device: Device,
    pub(crate) dtype: TorchDtype,
    /// False only for storage that is known never to have been written.
    pub(crate) filled: bool,
    pub(crate) dims: Dims,
    /// Whether it comes out of a model or a loss and so holds on to the graph behind it.
    pub(crate) graph: bool,
}

impl State {
    pub(crate) const UNKNOWN: Self = Self {
        device: Device::Unknown,
        dtype: TorchDtype::Unknown,
        filled: true,
        dims: Dims::Unknown,
        graph: false,
    };

    pub(crate) fn on(device: Device) -> Self {
        Self { device, ..Self::UNKNOWN }
    }

    /// What is true of both.
    pub(crate) fn join(self, other: Self) -> Self {
        Self {
            device: if self.device == other.device { self.device } else { Device::Unknown },
            dtype: if self.dtype == other.dtype { self.dtype } else { TorchDtype::Unknown },
            filled: self.filled || other.filled,
            dims: if self.dims == other.dims { self.dims } else { Dims::Unknown },
            graph: self.graph && other.graph,
        }
    }
}

/// What made an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Maker {
    /// A step of a loop over a loader, or an element of what such a step gave.
    Batch,
    /// An expression, as written or resolved, such as `torch.optim.SGD`.
    Written(Box<str>),
}

impl Maker {
    /// The expression, or `a batch`.
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Batch => "a batch",
            Self::Written(text) => text,
        }
    }
}

impl From<&str> for Maker {
    fn from(text: &str) -> Self {
        Self::Written(text.into())
    }
}

/// Something made in this file.
#[derive(Clone, Debug)]
pub(crate) struct Object<'a> {
    pub(crate) kind: Kind,
    /// The expression that made it.
    pub(crate) made: TextRange,
    /// The function it was made in.
    pub(crate) function: usize,
    /// The class in this file it is an instance of.
    pub(crate) class: Option<usize>,
    /// For an optimizer: the model whose parameters it holds.
    pub(crate) model: Option<ObjectId>,
    pub(crate) maker: Maker,
    /// The name it was first bound to.
    pub(crate) name: Option<&'a str>,
    /// Elements, where the size is written as literals.
    pub(crate) elements: Option<u64>,
    /// The state it was made in.
    pub(crate) born: State,
    /// The device it was moved to last, anywhere in the file (for the plan).
    pub(crate) last_device: Device,
    /// Whether the source itself shows what it is (not only how a parameter is used).
    pub(crate) seen_made: bool,
}

/// What the walk knows of a value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    Unknown,
    /// An imported dotted name.
    Path(Rc<str>),
    Str(&'a str),
    Int(i64),
    Float,
    Bool(bool),
    None,
    Device(Device),
    /// `device.type`, or a string made of a device.
    DeviceType(Device),
    Dtype(TorchDtype),
    Object(ObjectId),
    /// A class of this file.
    Class(usize),
    /// A function of this file.
    Function(usize),
    Sequence(Vec<Self>),
    /// Something that yields this when iterated.
    Yields(Box<Self>),
    /// One batch of a loader, before it is unpacked.
    Batch(Device),
    /// The parameters of a model.
    Parameters(ObjectId),
    /// A reading of the clock, taken here.
    Clock(TextSize),
    /// A NumPy array, and whether it is of float64.
    Array {
        double: bool,
    },
}

impl Value<'_> {
    pub(crate) fn object(&self) -> Option<ObjectId> {
        match self {
            Self::Object(id) => Some(*id),
            _ => None,
        }
    }

    /// Reads it as a device argument.
    pub(crate) fn as_device(&self) -> Option<Device> {
        match self {
            Self::Device(device) | Self::DeviceType(device) => Some(*device),
            Self::Str(text) => Device::from_text(text),
            _ => None,
        }
    }
}
