//! Where branches meet: what is true on both sides stays, what differs becomes unknown.

use std::mem;

use super::device::Device;
use super::flow::Flow;
use super::value::{ObjectId, Value};
use super::walk::Walker;

impl<'a> Walker<'a> {
    /// Goes on from what the branches have in common; true if none of them goes on.
    pub(super) fn join_ends(&mut self, ends: Vec<(bool, Flow<'a>)>) -> bool {
        let mut open = Vec::new();
        let mut closed = None;
        for (ended, flow) in ends {
            if ended { closed = Some(flow) } else { open.push(flow) }
        }
        let mut open = open.into_iter();
        match open.next() {
            Some(first) => {
                self.flow = first;
                for other in open {
                    self.join_with(other);
                }
                false
            }
            None => {
                self.flow = closed.unwrap_or_default();
                true
            }
        }
    }

    /// Joins another flow into the present one.
    pub(super) fn join_with(&mut self, mut other: Flow<'a>) {
        let mut changed = Vec::new();
        for (ours, theirs) in
            [(&mut self.flow.names, &mut other.names), (&mut self.flow.places, &mut other.places)]
        {
            for (name, value) in ours.iter_mut() {
                if let Some(theirs) = theirs.remove(name)
                    && *value != theirs
                {
                    changed.push((*name, mem::replace(value, Value::Unknown), theirs));
                }
            }
            ours.extend(theirs.drain());
        }
        // Values before states: an object that stands for two is made from the states of both.
        for (name, ours, theirs) in changed {
            let joined = self.join_values(ours, theirs, &other);
            if let Some(Device::Chosen { symbol, .. }) = joined.as_device() {
                self.facts.chosen.push((symbol, name));
            }
            self.flow.remember(name, joined);
        }
        let since = self.flow.since.max(other.since);
        let ours: Vec<ObjectId> = self.flow.states.keys().copied().collect();
        for id in ours {
            if !other.states.contains_key(&id) && id < since {
                let theirs = other.state(id).unwrap_or(self.facts.objects[id as usize].born);
                let state = self.state_of(id).join(theirs);
                self.flow.states.insert(id, state);
            }
        }
        for (id, theirs) in other.states.drain() {
            let known = self.flow.states.contains_key(&id) || id < since;
            let state = if known { self.state_of(id).join(theirs) } else { theirs };
            self.flow.states.insert(id, state);
        }
    }

    fn join_values(&mut self, ours: Value<'a>, theirs: Value<'a>, other: &Flow<'a>) -> Value<'a> {
        if ours == theirs {
            return ours;
        }
        match (&ours, &theirs) {
            (Value::Path(_), _) => return ours,
            (_, Value::Path(_)) => return theirs,
            (Value::Object(a), Value::Object(b)) => {
                let (left, right) =
                    (&self.facts.objects[*a as usize], &self.facts.objects[*b as usize]);
                if left.kind != right.kind {
                    return Value::Unknown;
                }
                let (kind, made, maker, class) =
                    (left.kind, left.made, left.maker.clone(), left.class);
                let theirs = other.state(*b).unwrap_or(right.born);
                let state = self.state_of(*a).join(theirs);
                let name = left.name;
                let id = self.make(kind, made, maker, state);
                let object = &mut self.facts.objects[id as usize];
                object.class = class;
                object.name = name;
                object.seen_made = false;
                return Value::Object(id);
            }
            _ => {}
        }
        self.join_devices(&ours, &theirs)
    }

    /// Two devices, or names of devices, make a choice; anything else is unknown.
    pub(super) fn join_devices(&mut self, ours: &Value<'a>, theirs: &Value<'a>) -> Value<'a> {
        match (ours.as_device(), theirs.as_device()) {
            (Some(a), Some(b)) if a.is_known() && b.is_known() => {
                let device = if a == b { a } else { self.fresh_device(a.can().with(b.can())) };
                let text =
                    |value: &Value<'_>| matches!(value, Value::Str(_) | Value::DeviceType(_));
                if text(ours) && text(theirs) {
                    Value::DeviceType(device)
                } else {
                    Value::Device(device)
                }
            }
            _ => Value::Unknown,
        }
    }
}
