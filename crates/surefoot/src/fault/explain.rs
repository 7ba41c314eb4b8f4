//! stub
use super::FaultKind;
/// E
pub struct Explanation {
    /// k
    pub kind: FaultKind,
}
/// e
pub fn explain(text: &str) -> Explanation {
    Explanation {
        kind: if text.contains("out of memory") {
            FaultKind::OutOfMemory
        } else {
            FaultKind::NotDeviceRelated
        },
    }
}
impl FaultKind {
    /// a
    pub fn advice(self) -> &'static [&'static str] {
        &["x"]
    }
}
