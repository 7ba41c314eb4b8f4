//! Which share of a sequence's proposals was accepted lately, and how long it goes without any; [`pace`](super::pace) decides by it.

/// What earlier proposals weigh with each new one.
const FORGET: f64 = 0.85;
/// For so many tokens no proposals are made after those that were not worth it, at first.
pub(super) const FIRST_REST: u32 = 16;

/// The share of a sequence's proposals that was accepted, lately.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AcceptedShare {
    accepted: f64,
    tried: f64,
    /// Tokens that are still to come before it is tried again, and how many the next time.
    pub(super) resting: u32,
    pub(super) rest: u32,
}

impl Default for AcceptedShare {
    fn default() -> Self {
        Self { accepted: 1.0, tried: 2.0, resting: 0, rest: FIRST_REST }
    }
}

impl AcceptedShare {
    /// One of a new sequence, where others went so.
    pub(crate) fn like(other: &Self) -> Self {
        Self { accepted: 2.0 * other.share(), tried: 2.0, resting: 0, rest: FIRST_REST }
    }

    pub(crate) fn share(&self) -> f64 {
        (self.accepted / self.tried.max(1e-9)).clamp(0.01, 0.99)
    }

    /// Of so many proposals so many were accepted. Those behind the first one that was not were not tried.
    pub(crate) fn verified(&mut self, proposed: usize, accepted: usize) {
        if proposed == 0 {
            return;
        }
        let tried = accepted + usize::from(accepted < proposed);
        self.accepted = self.accepted * FORGET + accepted as f64;
        self.tried = self.tried * FORGET + tried as f64;
    }
}
