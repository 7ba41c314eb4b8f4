//! What one file makes, and on which device it ends up.

use ruff_text_size::{Ranged, TextRange};

use crate::check::speaks_of_torch;
use crate::model::Facts;
use crate::model::device::{Device, Places};
use crate::model::event::EventKind;
use crate::model::value::{Kind, Object, Value};
use crate::source::Source;
use crate::syntax;

/// The sorts of thing the plan lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Model,
    Optimizer,
    Loader,
    Tensor,
}

impl Sort {
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Model => "Models",
            Self::Optimizer => "Optimizers",
            Self::Loader => "Loaders",
            Self::Tensor => "Tensors",
        }
    }
}

/// A place where a device is chosen.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub(super) name: String,
    pub(super) place: String,
    pub(super) can: String,
}

/// Something made.
#[derive(Clone, Debug)]
pub(super) struct Made {
    pub(super) sort: Sort,
    pub(super) name: String,
    pub(super) maker: String,
    pub(super) place: String,
    /// The device it ends up on, in words.
    pub(super) device: String,
    /// For an optimizer, the model it trains.
    pub(super) of: Option<String>,
}

/// What a file, or all of them, make.
#[derive(Clone, Debug, Default)]
pub(super) struct Story {
    pub(super) devices: Vec<Choice>,
    pub(super) made: Vec<Made>,
}

/// The story of a file; `None` if it can't be parsed or never speaks of torch.
pub(super) fn tell(source: &Source) -> Option<Story> {
    stacker::maybe_grow(16 << 20, 32 << 20, || {
        let parsed = syntax::parse(source).ok()?;
        if !speaks_of_torch(&source.text) {
            return None;
        }
        let facts = Facts::gather(&source.text, parsed.syntax());
        let by_symbol = facts.chosen.iter().map(|(symbol, name)| (*symbol, (*name).to_owned()));
        let mut names = Names { by_symbol: by_symbol.collect() };
        let devices = devices(source, &facts, &mut names);
        let made = facts.objects.iter().filter_map(|object| made(source, &facts, object, &names));
        Some(Story { devices, made: made.collect() })
    })
}

/// What the choices of a file are called.
struct Names {
    by_symbol: Vec<(u32, String)>,
}

impl Names {
    fn describe(&self, device: Device) -> String {
        match device {
            Device::Chosen { symbol, .. } => self
                .by_symbol
                .iter()
                .find(|(known, _)| *known == symbol)
                .map_or_else(|| "chosen at run time".to_owned(), |(_, name)| format!("`{name}`")),
            Device::Unknown => "not seen here".to_owned(),
            Device::Literal { .. } => device.describe().trim_start_matches("the ").to_owned(),
        }
    }
}

fn devices(source: &Source, facts: &Facts<'_>, names: &mut Names) -> Vec<Choice> {
    let mut choices = Vec::new();
    for event in facts.functions.iter().flat_map(|function| &function.events) {
        let EventKind::Assign { place, value, node, .. } = &event.kind else { continue };
        let device = match &value.value {
            Value::Device(device) | Value::DeviceType(device) => *device,
            Value::Str(_) if place.ends_with("device") => match value.value.as_device() {
                Some(device) => device,
                None => continue,
            },
            _ => continue,
        };
        if let Device::Chosen { symbol, .. } = device {
            names.by_symbol.push((symbol, (*place).to_owned()));
        }
        let text = facts.text(node.range());
        let can = if device.can() == Places::ANY {
            format!("whatever `{text}` says")
        } else {
            places(device)
        };
        choices.push(Choice { name: (*place).to_owned(), place: at(source, event.range), can });
    }
    choices
}

fn places(device: Device) -> String {
    let all = [
        (Places::CUDA, "cuda"),
        (Places::MPS, "mps"),
        (Places::CPU, "cpu"),
        (Places::META, "meta"),
        (Places::OTHER, "another accelerator"),
    ];
    let names: Vec<&str> =
        all.iter().filter(|(place, _)| device.can().has(*place)).map(|(_, name)| *name).collect();
    names.join(", ")
}

fn at(source: &Source, range: TextRange) -> String {
    let place = source.place(range.start());
    match place.cell {
        Some(cell) => format!("{} cell {cell}:{}", source.path, place.line),
        None => format!("{}:{}", source.path, place.line),
    }
}

fn made(source: &Source, facts: &Facts<'_>, object: &Object<'_>, names: &Names) -> Option<Made> {
    let sort = match object.kind {
        Kind::Model => Sort::Model,
        Kind::Optimizer => Sort::Optimizer,
        Kind::Loader => Sort::Loader,
        Kind::Tensor if object.maker.as_str().starts_with("torch.") => Sort::Tensor,
        _ => return None,
    };
    let name = object.name?;
    // The layers inside a model are not models of their own.
    let part =
        facts.functions[object.function].class.is_some_and(|class| facts.classes[class].is_model);
    if !object.seen_made || part {
        return None;
    }
    let of = object.model.and_then(|model| facts.objects.get(model as usize));
    let device = match sort {
        Sort::Optimizer => match of {
            Some(model) => format!("with its model: {}", names.describe(model.last_device)),
            None => "with its parameters".to_owned(),
        },
        Sort::Loader if object.born.device.is_known() => {
            format!("batches on {}", names.describe(object.born.device))
        }
        _ => names.describe(object.last_device),
    };
    Some(Made {
        sort,
        name: name.to_owned(),
        maker: object.maker.as_str().to_owned(),
        place: at(source, object.made.range()),
        device,
        of: of.and_then(|model| model.name).map(str::to_owned),
    })
}
