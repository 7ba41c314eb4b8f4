//! Whether products in fp32 may round their factors to TF32 (10 bits of fraction, the range of fp32), where a device has matrix units
//! for it. They add up in fp32 all the same.
//!
//! As in PyTorch (`torch.backends.cuda.matmul.allow_tf32`) they may not, unless they are told to: by [`allow_tf32`], or by
//! `SUREFOOT_TF32=1` in the environment.

use std::sync::OnceLock;

static ALLOWED: OnceLock<bool> = OnceLock::new();

/// Lets products use TF32, or not, for the whole process. Only the first word counts: `false` if a product was faster or another caller
/// said otherwise before.
pub fn allow_tf32(on: bool) -> bool {
    *ALLOWED.get_or_init(|| on) == on
}

/// Whether products may use TF32.
pub fn tf32_is_allowed() -> bool {
    *ALLOWED.get_or_init(|| std::env::var_os("SUREFOOT_TF32").is_some_and(|value| value == "1"))
}
