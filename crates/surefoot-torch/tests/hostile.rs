//! Whatever the file holds, checking it ends with findings or an error, never with a panic.

use proptest::prelude::*;
use surefoot_torch::check::check;
use surefoot_torch::fix::fix;
use surefoot_torch::rules;
use surefoot_torch::source::Source;
use surefoot_torch::syntax::DEEPEST;

/// A program with something of everything, to be mangled.
const PROGRAM: &str = r#"
import os, time
import torch as t
from torch import nn, optim
from torch.utils.data import DataLoader as DL
device = t.device("mps" if t.backends.mps.is_built() else "cuda")
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)
    def forward(self, x): return self.fc(x)
@t.no_grad()
def run(model, loader, *args, device=device, **kw):
    total, outs = 0, []
    opt = optim.SGD([{"params": p} for p in model.parameters()], lr=0.1)
    for i, (x, y) in enumerate(loader):
        try:
            x.to(device); out = model(x)
            loss = nn.CrossEntropyLoss()(out, y); loss.backward(); opt.step(); opt.zero_grad()
            total += loss; outs.append(out); t.cuda.empty_cache()
        except (RuntimeError, ValueError) as e:
            print(f"{e!r:>{10}} cuda:{i}")
        with t.autocast("cuda:0", dtype=t.float16), open("x") as f:
            start = time.time(); out = model(t.empty(3).cuda()); print(time.time() - start)
    return {k: v.item() for k, v in outs if v is not None} or (lambda z=1: z)
match run:
    case Net(fc=[a, *b]) if a: net = Net().to(device)
    case _: net = t.load("x")
loader = DL([], num_workers=2, pin_memory=True, persistent_workers=True)
os.environ["PYTORCH_ENABLE_MPS_FALLBACK"] = "1"
"#;

fn survives(text: String) {
    let source = Source::from_bytes("t.py".to_owned(), text.into_bytes()).expect("UTF-8");
    let Ok(findings) = check(&source, &rules::ALL) else { return };
    for finding in &findings {
        assert!(usize::from(finding.range.end()) <= source.text.len());
        let place = source.place(finding.range.start());
        assert!(place.line >= 1 && place.column >= 1);
    }
    if let Some(fixed) = fix(&source, &rules::ALL) {
        assert!(check(&fixed.source, &rules::ALL).is_ok(), "a fix broke:\n{}", source.text);
        let again = fix(&fixed.source, &rules::ALL);
        assert!(again.is_none(), "fixing twice differs from once:\n{}", source.text);
    }
}

fn boundary(text: &str, at: usize) -> usize {
    let mut at = at % (text.len() + 1);
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn mangled_programs_are_survived(
        cuts in prop::collection::vec((any::<usize>(), 0usize..40, "[a-z(){}\\[\\]:,.=\"'#\n\t @*é\u{0}-]{0,8}"), 0..6)
    ) {
        let mut text = PROGRAM.to_owned();
        for (at, length, insert) in cuts {
            let start = boundary(&text, at);
            let end = boundary(&text, (start + length).min(text.len()));
            text.replace_range(start.min(end)..end.max(start), &insert);
        }
        survives(text);
    }

    #[test]
    fn shuffled_lines_are_survived(order in prop::collection::vec(0usize..40, 1..40)) {
        let lines: Vec<&str> = PROGRAM.lines().collect();
        let text: String = order.iter().map(|i| format!("{}\n", lines[i % lines.len()])).collect();
        survives(format!("import torch as t\n{text}"));
    }

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..400), notebook in any::<bool>()) {
        let name = if notebook { "t.ipynb" } else { "t.py" };
        if let Ok(source) = Source::from_bytes(name.to_owned(), bytes) {
            let _ = check(&source, &rules::ALL);
        }
    }
}

#[test]
fn trees_just_below_the_bound_are_checked() {
    let n = DEEPEST - 20;
    for text in [
        format!("import torch\nx = {}1{}", "[".repeat(n), "]".repeat(n)),
        format!("import torch\nx = y{}", ".to(1)".repeat(n / 2)),
        format!("import torch\nx = 1{}", " + torch.zeros(2)".repeat(n / 2)),
        format!("import torch\nx = {}1", "not ".repeat(n)),
    ] {
        let source = Source::from_bytes("t.py".to_owned(), text.into_bytes()).expect("UTF-8");
        assert!(check(&source, &rules::ALL).is_ok());
    }
}

#[test]
fn deeply_indented_blocks_are_survived() {
    let mut text = String::from("import torch\n");
    for depth in 0..400 {
        text.push_str(&format!("{}if x:\n", " ".repeat(depth)));
    }
    text.push_str(&format!("{}y = torch.zeros(3)\n", " ".repeat(400)));
    survives(text);
}
