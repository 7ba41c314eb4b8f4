//! Plans that lay the blocks of a model over several devices.
//!
//! A token goes through one block after another, so devices take turns: a block costs the time that its own device takes.
//! The fastest device therefore gets as many parts as fit its memory, from the head backwards; the next one those before
//! them; and the last one the rest, of which it streams what does not fit. Each device has one run of neighbouring parts, so
//! activations cross from one device to the next as seldom as can be. The caller may say instead how many blocks each device gets.
//!
//! What one device alone would take, streaming what does not fit, is compared with that, by speeds that were measured; the
//! faster of the two is the plan. Devices that share the host's memory share one limit.

use std::ops::Range;

use serde::Serialize;
use surefoot::device::DeviceName;

use super::limits::{DeviceMemory, MemoryLimits};
use super::needs::{self, Needs, Work};
use super::plan::{Placement, Plan, Residency};
use crate::arch::blueprint::Blueprint;
use crate::error::ModelError;
use crate::run::output::Logits;
use crate::weights::binding::{Binding, Matrix};
use crate::weights::format::Format;

/// A device that a model may be laid over.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) name: DeviceName,
    pub(crate) format: Format,
    /// What it may use; the host's limit is the same for all.
    pub(crate) limits: MemoryLimits,
    pub(crate) speed: Speed,
}

/// What was measured of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speed {
    /// Bytes of weights a second that a single token's pass goes through.
    pub(crate) decode: f64,
    /// Bytes a second to the device; none where weights are plain memory of this process.
    pub(crate) upload: Option<f64>,
}

/// What one device of several has of a model.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct DevicePlan {
    /// The device.
    pub device: DeviceName,
    /// The number of its first block.
    pub first_block: usize,
    /// How many blocks it has.
    pub blocks: usize,
    /// Whether it has the head.
    pub head: bool,
    /// Bytes of its matrices in memory.
    pub bytes: u64,
    /// Those that stay.
    pub resident_bytes: u64,
    /// Bytes of weights a second that a single token's pass goes through, measured.
    pub decode_bytes_per_second: f64,
    /// Seconds that its parts take for one token, without streaming.
    pub seconds_per_token: f64,
}

impl DevicePlan {
    /// The parts, in words: `blocks 0 to 3 and the head`.
    pub fn parts(&self) -> String {
        let last = self.first_block + self.blocks.saturating_sub(1);
        let blocks = match self.blocks {
            0 => return "the head".to_owned(),
            1 => format!("block {last}"),
            _ => format!("blocks {} to {last}", self.first_block),
        };
        if self.head { format!("{blocks} and the head") } else { blocks }
    }
}

/// A model that is to be laid over devices, and the work it is planned for.
pub(crate) struct Subject<'a> {
    pub(crate) blueprint: &'a Blueprint,
    pub(crate) binding: &'a Binding,
    pub(crate) baseline: u64,
    pub(crate) work: Work,
    /// Bytes a second from the model's files as they are needed, read and converted.
    pub(crate) feed: f64,
}

/// Some neighbouring parts on a device, planned.
struct Share<'m> {
    member: &'m Member,
    parts: Range<usize>,
    plan: Plan,
}

impl Subject<'_> {
    /// The fastest plan over `members`, which may leave some of them without parts. `blocks` says how many blocks each
    /// member gets, in their order, if the caller chose.
    pub(crate) fn plan(
        &self,
        members: &[Member],
        blocks: Option<&[usize]>,
    ) -> Result<Plan, ModelError> {
        if let Some(blocks) = blocks {
            return Ok(self.combined(self.chosen(members, blocks)?));
        }
        let mut order: Vec<&Member> = members.iter().collect();
        // Devices of about the same speed stay in the order that was asked for.
        order.sort_by_key(|member| {
            std::cmp::Reverse(member.speed.decode.max(1.0).log2().round() as i64)
        });
        let everything = 0..self.part_count();
        let alone = order
            .iter()
            .map(|member| self.combined(vec![self.share(member, everything.clone(), members, 0)]));
        let mut best: Option<Plan> = None;
        for plan in alone.chain([self.combined(self.laid_over(&order, members))]) {
            let is_better = match &best {
                None => true,
                Some(best) if best.fits != plan.fits => plan.fits,
                Some(best) => self.seconds(&plan, members) < 0.98 * self.seconds(best, members),
            };
            if is_better {
                best = Some(plan);
            }
        }
        best.ok_or_else(|| ModelError::request("no device was given to lay the model over"))
    }

    /// The blocks, and the head if there is one.
    fn part_count(&self) -> usize {
        self.blueprint.blocks.len() + usize::from(self.binding.head.is_some())
    }

    /// As many parts as fit on the first device of `order`, from the last one backwards, then on the next.
    fn laid_over<'m>(&self, order: &[&'m Member], members: &[Member]) -> Vec<Share<'m>> {
        let (mut shares, mut end, mut host_used) = (Vec::new(), self.part_count(), 0);
        for (number, &member) in order.iter().enumerate() {
            let is_last = number + 1 == order.len();
            let mut start = if is_last { 0 } else { end };
            if !is_last {
                // Fewer parts need less, so the boundary is found by halving.
                let (mut none, mut all) = (0, end);
                while none < all {
                    let middle = (none + all) / 2;
                    let share = self.share(member, middle..end, members, host_used);
                    match share.stays(host_used) {
                        true => all = middle,
                        false => none = middle + 1,
                    }
                }
                start = start.min(all);
            }
            if start == end {
                continue;
            }
            let share = self.share(member, start..end, members, host_used);
            host_used += share.host_bytes();
            shares.push(share);
            end = start;
        }
        shares.reverse();
        shares
    }

    /// So many blocks on each member, in order; the head is with the last block.
    fn chosen<'m>(
        &self,
        members: &'m [Member],
        blocks: &[usize],
    ) -> Result<Vec<Share<'m>>, ModelError> {
        let all = self.blueprint.blocks.len();
        let sum: usize = blocks.iter().sum();
        if blocks.len() != members.len() || sum != all {
            let names: Vec<_> = members.iter().map(|member| member.name.to_string()).collect();
            return Err(ModelError::request(format!(
                "{} numbers of blocks with a sum of {sum} were given for {}: the model has {all} blocks, and each device \
                 needs a number",
                blocks.len(),
                names.join("+")
            )));
        }
        let last = blocks.iter().rposition(|count| *count > 0);
        let (mut shares, mut start, mut host_used) = (Vec::new(), 0, 0);
        for (number, (member, count)) in members.iter().zip(blocks).enumerate() {
            let end = if Some(number) == last { self.part_count() } else { start + count };
            if start < end {
                let share = self.share(member, start..end, members, host_used);
                host_used += share.host_bytes();
                shares.push(share);
            }
            start = end;
        }
        Ok(shares)
    }

    /// Plans some parts for a device, where other devices use `host_used` bytes of the host already.
    fn share<'m>(
        &self,
        member: &'m Member,
        parts: Range<usize>,
        members: &[Member],
        host_used: u64,
    ) -> Share<'m> {
        let all = self.blueprint.blocks.len();
        let blocks = parts.start.min(all)..parts.end.min(all);
        let mut blueprint = self.blueprint.clone();
        blueprint.blocks = self.blueprint.blocks[blocks.clone()].to_vec();
        let mut binding = self.binding.clone();
        binding.matrices = self.matrices(&parts).map(|(_, matrix)| matrix.clone()).collect();
        for matrix in &mut binding.matrices {
            matrix.block = matrix.block.map(|block| block - blocks.start);
        }
        let vectors = self.binding.vector_bytes * (blocks.len() as u64 + 1);
        binding.vector_bytes = vectors.div_ceil(all as u64 + 1);
        let mut work = self.work;
        if parts.end <= all {
            work.want.logits = Logits::None;
        }
        // A driver in the process takes memory of it wherever a block is.
        let has_driver = members.iter().any(|member| !member.format.is_on_host());
        let baseline = match has_driver && member.format.is_on_host() {
            true => self.baseline + needs::DRIVER_BYTES,
            false => self.baseline,
        };
        let host = member.limits.host.map(|limit| limit.saturating_sub(host_used));
        let limits = MemoryLimits { host, ..member.limits };
        let plan = Plan::new(&blueprint, &binding, &member.format, baseline, &work, &limits);
        Share { member, parts, plan }
    }

    /// The matrices of some parts with their numbers, in order.
    fn matrices(&self, parts: &Range<usize>) -> impl Iterator<Item = (usize, &Matrix)> {
        let (parts, head) = (parts.clone(), self.blueprint.blocks.len());
        let matrices = self.binding.matrices.iter().enumerate();
        matrices.filter(move |(_, matrix)| parts.contains(&matrix.block.unwrap_or(head)))
    }

    /// One plan of those of all devices.
    fn combined(&self, shares: Vec<Share<'_>>) -> Plan {
        let head = self.blueprint.blocks.len();
        let mut cuts = vec![Vec::new(); self.binding.matrices.len()];
        let mut device_map = Vec::with_capacity(shares.len());
        let mut parts = Vec::with_capacity(self.part_count());
        let mut residency = Residency::default();
        for Share { member, parts: range, plan } in &shares {
            let numbers = self.matrices(range).map(|(number, _)| number);
            for (number, of_matrix) in numbers.zip(&plan.residency.cuts) {
                cuts[number].clone_from(of_matrix);
            }
            residency.add(&plan.residency);
            let format = &member.format;
            let used = |(_, matrix): (usize, &Matrix)| format.bytes(matrix) as f64 * matrix.used();
            let used: f64 = self.matrices(range).map(used).sum();
            device_map.push(DevicePlan {
                device: member.name,
                first_block: range.start.min(head),
                blocks: range.end.min(head) - range.start.min(head),
                head: range.end > head,
                bytes: plan.parts.iter().map(|part| part.bytes).sum(),
                resident_bytes: plan.resident_bytes,
                decode_bytes_per_second: member.speed.decode,
                seconds_per_token: used / member.speed.decode.max(1.0),
            });
            parts.extend(plan.parts.iter().cloned().enumerate().map(|(at, mut part)| {
                if range.start + at < head {
                    part.name = format!("block {}", range.start + at);
                }
                part
            }));
        }
        residency.cuts = cuts;
        let plans = || shares.iter().map(|share| &share.plan);
        let sum = |of: fn(&Plan) -> u64| plans().map(of).sum::<u64>();
        let baseline = plans().map(|plan| plan.needs.baseline_bytes).max().unwrap_or(0);
        let host = baseline + shares.iter().map(Share::host_bytes).sum::<u64>();
        let device = plans().filter_map(|plan| plan.device_bytes).max();
        let all: u64 = device_map.iter().map(|share| share.bytes).sum();
        let resident_bytes = sum(|plan| plan.resident_bytes);
        let mode = match resident_bytes {
            resident if resident == all => Placement::Resident,
            0 => Placement::Streamed,
            _ => Placement::Mixed,
        };
        let refused = plans().find(|plan| !plan.fits).or_else(|| plans().next());
        Plan {
            fits: plans().all(|plan| plan.fits),
            mode,
            budget_bytes: refused.and_then(|plan| plan.budget_bytes),
            peak_bytes: host.max(device.unwrap_or(0)),
            host_bytes: host,
            device_bytes: device,
            least_bytes: refused.map_or(0, |plan| plan.least_bytes),
            all_resident_bytes: sum(|plan| plan.all_resident_bytes - plan.needs.baseline_bytes)
                + baseline,
            needs: Needs {
                baseline_bytes: baseline,
                vector_bytes: sum(|plan| plan.needs.vector_bytes),
                kv_cache_bytes: sum(|plan| plan.needs.kv_cache_bytes),
                activation_bytes: sum(|plan| plan.needs.activation_bytes),
            },
            resident_bytes,
            expert_cache_bytes: sum(|plan| plan.expert_cache_bytes),
            expert_bytes: sum(|plan| plan.expert_bytes),
            window_bytes: sum(|plan| plan.window_bytes),
            streamed_file_bytes: sum(|plan| plan.streamed_file_bytes),
            parts,
            device_map,
            residency,
        }
    }

    /// How long one token would take.
    fn seconds(&self, plan: &Plan, members: &[Member]) -> f64 {
        let computing: f64 = plan.device_map.iter().map(|share| share.seconds_per_token).sum();
        let uploading: f64 = plan
            .device_map
            .iter()
            .filter_map(|share| {
                let member = members.iter().find(|member| member.name == share.device)?;
                Some((share.bytes - share.resident_bytes) as f64 / member.speed.upload?)
            })
            .sum();
        (plan.streamed_file_bytes as f64 / self.feed + uploading).max(computing)
    }
}

impl Share<'_> {
    /// Whether all of it stays within the limits, where others use so much of the host.
    fn stays(&self, host_used: u64) -> bool {
        let within = |bytes: u64, limit: Option<u64>| limit.is_none_or(|limit| bytes <= limit);
        let limits = &self.member.limits;
        let on_device = match limits.device {
            DeviceMemory::Shared => true,
            DeviceMemory::Own { limit } => within(self.plan.device_bytes.unwrap_or(0), limit),
        };
        self.plan.mode == Placement::Resident
            && on_device
            && within(self.plan.host_bytes + host_used, limits.host)
    }

    /// What it takes of the host beside the process.
    fn host_bytes(&self) -> u64 {
        self.plan.host_bytes.saturating_sub(self.plan.needs.baseline_bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use burn::tensor::Device;
    use surefoot::device::Backend;

    use super::*;
    use crate::Opened;
    use crate::folder::header::WeightDtype;
    use crate::generate::tokens;

    const FAST: DeviceName = DeviceName { backend: Backend::Gpu, index: 0 };

    fn opened() -> Opened {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/llama-tiny");
        Opened::new(&folder).unwrap()
    }

    fn subject(opened: &Opened, feed: f64) -> Subject<'_> {
        let work = Work { batch: 1, prompt: 4, new_tokens: 4, want: tokens::WANT };
        Subject { blueprint: &opened.blueprint, binding: &opened.binding, baseline: 0, work, feed }
    }

    /// A device with memory of its own.
    fn member(name: DeviceName, bytes: Option<u64>, decode: f64) -> Member {
        Member {
            name,
            format: Format::new(&Device::flex(), WeightDtype::F32),
            limits: MemoryLimits { host: None, device: DeviceMemory::Own { limit: bytes } },
            speed: Speed { decode, upload: None },
        }
    }

    /// What the parts from `start` on need of a device's memory.
    fn needed(opened: &Opened, start: usize) -> u64 {
        let (subject, all) = (subject(opened, 1.0), member(FAST, None, 1.0));
        let share = subject.share(&all, start..4, std::slice::from_ref(&all), 0);
        share.plan.device_bytes.unwrap()
    }

    fn told(plan: &Plan) -> Vec<(DeviceName, String)> {
        plan.device_map.iter().map(|share| (share.device, share.parts())).collect()
    }

    #[test]
    fn a_model_that_fits_the_fastest_device_is_there_alone_wherever_it_is_in_the_list() {
        let opened = opened();
        let members = [member(DeviceName::CPU, None, 1e9), member(FAST, Some(1 << 30), 1e12)];
        let plan = subject(&opened, 1e9).plan(&members, None).unwrap();
        assert_eq!(told(&plan), [(FAST, "blocks 0 to 2 and the head".to_owned())]);
        assert_eq!(plan.mode, Placement::Resident);
    }

    #[test]
    fn what_does_not_fit_the_fastest_device_goes_to_the_next_one_and_nothing_streams() {
        let opened = opened();
        let limit = Some(needed(&opened, 2));
        let members = [member(FAST, limit, 1e12), member(DeviceName::CPU, None, 1e9)];
        let plan = subject(&opened, 1e3).plan(&members, None).unwrap();
        let (slow, fast) = ("blocks 0 to 1".to_owned(), "block 2 and the head".to_owned());
        assert_eq!(told(&plan), [(DeviceName::CPU, slow), (FAST, fast)]);
        assert_eq!((plan.mode, plan.streamed_file_bytes), (Placement::Resident, 0));
        assert!(plan.fits && plan.device_map.iter().all(|it| it.bytes == it.resident_bytes));
        let names: Vec<&str> = plan.parts.iter().map(|part| part.name.as_str()).collect();
        assert_eq!(names, ["block 0", "block 1", "block 2", "head"]);
        let one_byte_less = [member(FAST, limit.map(|it| it - 1), 1e12), members[1].clone()];
        let plan = subject(&opened, 1e3).plan(&one_byte_less, None).unwrap();
        assert_eq!(told(&plan)[0].1, "blocks 0 to 2", "the head alone is left");
    }

    #[test]
    fn streaming_is_chosen_where_it_is_faster_than_a_slow_second_device() {
        let opened = opened();
        let members =
            [member(FAST, Some(needed(&opened, 2)), 1e12), member(DeviceName::CPU, None, 1e3)];
        let plan = subject(&opened, 1e11).plan(&members, None).unwrap();
        assert_eq!(told(&plan), [(FAST, "blocks 0 to 2 and the head".to_owned())]);
        assert!(plan.streamed_file_bytes > 0 && plan.fits);
    }

    #[test]
    fn what_fits_nowhere_is_streamed_by_the_slower_device() {
        let opened = opened();
        let (head, more) = (Some(needed(&opened, 3)), Some(needed(&opened, 2)));
        let members = [member(FAST, head, 1e12), member(DeviceName::CPU, more, 1e9)];
        let plan = subject(&opened, 1e3).plan(&members, None).unwrap();
        assert_eq!(plan.device_map.len(), 2, "{:?}", plan.device_map);
        assert!(plan.device_map[0].resident_bytes < plan.device_map[0].bytes);
        assert_eq!(plan.device_map[1].resident_bytes, plan.device_map[1].bytes);
    }

    #[test]
    fn a_memory_that_devices_share_is_counted_once() {
        let opened = opened();
        let format = Format::new(&Device::flex(), WeightDtype::F32);
        let alone = subject(&opened, 1e9);
        let shared = |name, limit| Member {
            limits: MemoryLimits { host: limit, device: DeviceMemory::Shared },
            format,
            ..member(name, None, 1e9)
        };
        let whole = alone.plan(&[shared(FAST, None), shared(DeviceName::CPU, None)], None).unwrap();
        let limit = Some(whole.peak_bytes - whole.resident_bytes / 4);
        let members = [shared(FAST, limit), shared(DeviceName::CPU, limit)];
        let plan = alone.plan(&members, None).unwrap();
        assert!(plan.streamed_file_bytes > 0, "a second device adds no memory here");
        assert!(plan.fits && Some(plan.peak_bytes) <= limit, "{} of {limit:?}", plan.peak_bytes);
    }

    #[test]
    fn blocks_can_be_given_out_by_number_and_wrong_numbers_are_refused() {
        let opened = opened();
        let members = [member(FAST, None, 1e12), member(DeviceName::CPU, None, 1e9)];
        let subject = subject(&opened, 1e9);
        let plan = subject.plan(&members, Some(&[1, 2])).unwrap();
        let parts = ["block 0".to_owned(), "blocks 1 to 2 and the head".to_owned()];
        assert_eq!(told(&plan), [FAST, DeviceName::CPU].into_iter().zip(parts).collect::<Vec<_>>());
        let one = subject.plan(&members, Some(&[3, 0])).unwrap();
        assert_eq!(told(&one), [(FAST, "blocks 0 to 2 and the head".to_owned())]);
        for wrong in [&[1, 1][..], &[3], &[1, 1, 1]] {
            let error = subject.plan(&members, Some(wrong)).unwrap_err().to_string();
            assert!(error.contains("has 3 blocks"), "{error}");
        }
    }
}
