//! How far a device can be trusted.
//!
//! healthy ──fault──► suspect ──fault──► lost      healthy/suspect ──device_lost──► lost
//!    ▲                  │
//!    └──a good step─────┘        lost is for the rest of the process
//!
//! A caller's mistake changes nothing, and a fault that strikes all that is under way on a device is one
//! fault.

use serde::{Deserialize, Serialize};

use crate::fault::FaultKind;

/// Whether later work should use a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// Works.
    #[default]
    Healthy,
    /// Failed lately; one more fault and it is given up.
    Suspect,
    /// Gone until the process ends.
    Lost,
}

impl Health {
    /// The state after a fault of `kind` on the device.
    #[must_use]
    pub fn after_fault(self, kind: FaultKind) -> Self {
        match (self, kind) {
            (state, kind) if kind.is_callers() => state,
            // Work that is too large or in the wrong dtype says nothing about the device.
            (
                state,
                FaultKind::OutOfMemory
                | FaultKind::DeviceMismatch
                | FaultKind::DtypeMismatch
                | FaultKind::UnsupportedDtype
                | FaultKind::UnsupportedOp
                | FaultKind::PlaceholderStorage
                | FaultKind::StateLost
                | FaultKind::Numeric,
            ) => state,
            (_, FaultKind::DeviceLost | FaultKind::DriverOrInit) => Self::Lost,
            (Self::Healthy, _) => Self::Suspect,
            (Self::Suspect | Self::Lost, _) => Self::Lost,
        }
    }

    /// The state after a step that was confirmed to have worked.
    #[must_use]
    pub fn after_success(self) -> Self {
        match self {
            Self::Suspect => Self::Healthy,
            state => state,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_command_buffer_faults_in_a_row_lose_a_device_and_a_good_step_between_saves_it() {
        let once = Health::Healthy.after_fault(FaultKind::CommandBuffer);
        assert_eq!(once, Health::Suspect);
        assert_eq!(once.after_fault(FaultKind::CommandBuffer), Health::Lost);
        assert_eq!(once.after_success(), Health::Healthy);
    }

    #[test]
    fn a_lost_device_stays_lost_and_a_callers_mistake_costs_nothing() {
        let lost = Health::Healthy.after_fault(FaultKind::DeviceLost);
        assert_eq!(lost.after_success(), Health::Lost);
        for kind in FaultKind::ALL.into_iter().filter(|kind| kind.is_callers()) {
            assert_eq!(Health::Healthy.after_fault(kind), Health::Healthy, "{kind}");
        }
        assert_eq!(Health::Healthy.after_fault(FaultKind::OutOfMemory), Health::Healthy);
    }
}
