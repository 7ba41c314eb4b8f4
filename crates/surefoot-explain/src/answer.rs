//! The whole answer to a text: the explanation, what the text says about sizes, shapes, types and
//! devices, the user's own frame of a traceback, and the guide for the error if there is one.

use serde::Serialize;
use surefoot_core::fault::FaultKind;

use crate::explain::{Explanation, SecondGuess, explain, explain_kind};
use crate::facts::Facts;
use crate::frame::Frame;
use crate::guides::{self, Guide};
use crate::learned::{self, Model};

/// Everything that is known about a text.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Answer {
    /// What it means.
    #[serde(flatten)]
    pub explanation: Explanation,
    /// What it says in numbers and names.
    pub facts: Facts,
    /// The user's own line, where the text has a traceback.
    pub frame: Option<Frame>,
    /// Causes, changes, settings and references for a well-known error.
    pub guide: Option<&'static Guide>,
    /// The page of the guide in the repository.
    pub page: Option<String>,
}

/// Explains a text and reads out of it what helps to act.
pub fn answer(text: &str) -> Answer {
    let mut found = explain(text);
    if found.second.is_none()
        && found.confidence > learned::RULES_SURE_ABOVE
        && let Some(model) = Model::embedded()
    {
        // Single answers have the time to ask whether the learned stage contradicts the rules.
        let doubt = learned::doubt(model, text, found.kind);
        found.second = doubt.map(|(kind, probability)| SecondGuess { kind, probability });
    }
    answer_as(found, text)
}

/// The same where the kind is known already, from an error's type: the text is asked for the rest.
pub fn answer_of_kind(text: &str, kind: FaultKind) -> Answer {
    let found = explain(text);
    answer_as(if found.kind == kind { found } else { explain_kind(kind) }, text)
}

fn answer_as(explanation: Explanation, text: &str) -> Answer {
    let found = explanation.recognised().then_some(explanation.kind);
    let guide = found.and_then(|kind| guides::find(kind, text));
    Answer {
        facts: Facts::of(text),
        frame: Frame::of(text),
        page: guide.map(|guide| format!("docs/errors/{}.md", guide.name)),
        guide,
        explanation,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_out_of_memory_error_has_its_sizes_frame_and_guide() {
        let text = "Traceback (most recent call last):\n  File \"/home/u/train.py\", line 97, in step\n    loss = model(x)\n  File \"/usr/lib/python3/site-packages/torch/nn/modules/module.py\", line 1, in _call_impl\n    return forward_call(*args)\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 23.69 GiB of which 3.00 GiB is free.";
        let found = answer(text);
        assert_eq!(found.page.as_deref(), Some("docs/errors/cuda-out-of-memory.md"));
        let frame = found.frame.expect("a frame");
        assert_eq!((frame.file.as_str(), frame.line), ("/home/u/train.py", 97));
        assert_eq!(frame.code.as_deref(), Some("loss = model(x)"));
        assert_eq!(found.facts.requested_bytes, Some(20 << 30));
        assert_eq!(found.facts.free_bytes, Some(3 << 30));
    }

    #[test]
    fn a_kind_that_the_type_decided_is_kept_and_the_text_gives_the_rest() {
        let text = "worker 3: Tried to allocate 2.00 GiB and failed";
        let found = answer_of_kind(text, FaultKind::DeviceLost);
        assert_eq!(found.explanation.kind, FaultKind::DeviceLost);
        assert_eq!(found.facts.requested_bytes, Some(2 << 30));
        let text = "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 4.00 GiB.";
        let found = answer_of_kind(text, FaultKind::OutOfMemory);
        assert_eq!(found.page.as_deref(), Some("docs/errors/xpu-out-of-memory.md"));
    }

    #[test]
    fn what_is_unknown_has_no_guide() {
        let found = answer("the quick brown fox");
        assert!(found.guide.is_none() && found.frame.is_none() && found.facts.is_empty());
    }
}
