//! What a runner needs to lay a model over several devices: what may be used of each, and how fast it is.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use surefoot::device::DeviceName;
use surefoot::fault::{catch, from_panic};
use surefoot::journal::Event;

use super::{Runner, computes_in};
use crate::error::ModelError;
use crate::folder::header::WeightDtype;
use crate::run::opened::Opened;
use crate::run::part_devices::PartDevices;
use crate::stream::device_map::{Member, Speed, Subject};
use crate::stream::limits::{DeviceMemory, MemoryLimits};
use crate::stream::needs::Work;
use crate::stream::plan::Plan;
use crate::stream::rate;
use crate::weights::format::Format;
use surefoot_quant::BlockFormat;

/// What was measured: of devices once for each form of weights, of files once for each model and form.
#[derive(Debug, Default)]
pub(super) struct Speeds {
    devices: Mutex<HashMap<(DeviceName, BlockFormat), Speed>>,
    files: Mutex<HashMap<(PathBuf, &'static str), f64>>,
}

impl Runner {
    /// Plans `work` for a model that is laid over `together`, if that is faster than one of them alone.
    pub(super) fn plan_over(
        &self,
        opened: &Opened,
        work: &Work,
        together: &[DeviceName],
    ) -> Result<Plan, ModelError> {
        let budget = self.footing.budget();
        let compute = opened.format().compute;
        let mut members = Vec::with_capacity(together.len());
        for name in together {
            let device = self.footing.device_named(*name)?.burn().clone();
            let room = self.footing.room_of(*name)?;
            let least = |limit: Option<u64>| match (limit, budget) {
                (Some(limit), Some(budget)) => Some(limit.min(budget)),
                (limit, budget) => limit.or(budget),
            };
            let MemoryLimits { host, device: memory } = MemoryLimits::of_room(&room);
            let memory = match memory {
                DeviceMemory::Shared => DeviceMemory::Shared,
                DeviceMemory::Own { limit } => DeviceMemory::Own { limit: least(limit) },
            };
            let format = Format::new(&device, compute);
            let measured = catch(|| self.speed(*name, &device, &format, opened));
            let speed =
                measured.map_err(|panic| from_panic("measuring", &panic).on(name.to_string()))?;
            members.push(Member {
                name: *name,
                speed,
                format,
                limits: MemoryLimits { host: least(host), device: memory },
            });
        }
        let subject = Subject {
            blueprint: &opened.blueprint,
            binding: &opened.binding,
            baseline: opened.baseline(),
            work: *work,
            feed: self.feed(opened),
        };
        // Numbers for devices of which a run has left some say nothing.
        let blocks = self.footing.asked_parts().filter(|blocks| blocks.len() == together.len());
        subject.plan(&members, blocks)
    }

    /// The devices of the parts of a plan that lays them over several.
    pub(super) fn part_devices(
        &self,
        plan: &Plan,
        blocks: usize,
    ) -> Result<PartDevices, ModelError> {
        let mut parts = Vec::with_capacity(blocks + 1);
        for share in &plan.device_map {
            let device = self.footing.device_named(share.device)?.burn().clone();
            let count = share.blocks + usize::from(share.head);
            parts.extend(std::iter::repeat_n((share.device, device), count));
        }
        // A model without a head still has a final norm, which is with the last block.
        if let (true, Some(last)) = (parts.len() == blocks, parts.last().cloned()) {
            parts.push(last);
        }
        Ok(PartDevices::several(parts))
    }

    /// The dtype that products are computed in on all of these devices: one that does not compute in `wanted` would give wrong
    /// numbers, so fp32 then.
    pub(super) fn common_compute(
        &self,
        wanted: WeightDtype,
        together: &[DeviceName],
    ) -> Result<WeightDtype, ModelError> {
        for name in together {
            if !computes_in(*name, wanted)? {
                return Ok(WeightDtype::F32);
            }
        }
        Ok(wanted)
    }

    /// The places of devices in the footing's chain, one bit each.
    pub(super) fn places_of(&self, names: &[DeviceName]) -> u64 {
        let chain = self.footing.health();
        let bit = |(at, (name, _)): (usize, &(DeviceName, _))| match names.contains(name) {
            true => 1_u64.checked_shl(at as u32).unwrap_or(0),
            false => 0,
        };
        chain.iter().enumerate().map(bit).sum()
    }

    /// Bytes of a model's files a second, read and converted.
    fn feed(&self, opened: &Opened) -> f64 {
        let key = (opened.folder.clone(), opened.weights().as_str());
        let mut known = self.speeds.files.lock().unwrap_or_else(PoisonError::into_inner);
        *known.entry(key).or_insert_with(|| {
            let (read, convert) = rate::sample(&opened.binding, opened.format());
            convert.map_or(read, |convert| 1.0 / (1.0 / read + 1.0 / convert))
        })
    }

    fn speed(
        &self,
        name: DeviceName,
        device: &burn::tensor::Device,
        format: &Format,
        opened: &Opened,
    ) -> Speed {
        let first = opened.binding.matrices.first();
        let kept = first.map_or(BlockFormat::F32, |first| format.kept(first.target));
        let mut known = self.speeds.devices.lock().unwrap_or_else(PoisonError::into_inner);
        *known.entry((name, kept)).or_insert_with(|| Speed {
            decode: rate::sample_decode(device, format, kept),
            upload: (!format.is_on_host()).then(|| rate::sample_upload(device)),
        })
    }
}

/// Notes which parts are on which device, where there are several.
pub(super) fn record(event: Event, plan: &Plan) -> Event {
    match plan.device_map.is_empty() {
        true => event,
        false => event.context("device_map", plan.told_devices()),
    }
}
