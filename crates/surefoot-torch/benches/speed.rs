//! How fast files are checked: a million lines of Python on all cores, and one file as an editor
//! would ask for it. Run with `cargo bench -p surefoot-torch`.
//!
//! The files are made here: half of them training scripts that use all of torch that the rules
//! know, half of them plain Python, about 250 lines each.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use surefoot_torch::check::check;
use surefoot_torch::discover::discover;
use surefoot_torch::project::check_files;
use surefoot_torch::rules;
use surefoot_torch::settings::{Overrides, Settings};
use surefoot_torch::source::Source;

const LINES: usize = 1_000_000;

const TRAINING: &str = r#"
class Net{n}(nn.Module):
    """A network of two layers."""

    def __init__(self, width: int = {n}):
        super().__init__()
        self.first = nn.Linear(width, 64)
        self.drop = nn.Dropout(0.1)
        self.last = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.first(x))
        return self.last(self.drop(x))


def train_{n}(model, loader, optimizer, criterion, device, interval=100):
    model.train()
    total = torch.zeros((), device=device)
    for step, (inputs, targets) in enumerate(loader):
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device_type=device.type, dtype=torch.bfloat16):
            outputs = model(inputs)
            loss = criterion(outputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total += loss.detach()
        if step % interval == 0:
            print(f"step {{step}}: {{loss.item():.4f}}")
    return total / len(loader)


def main_{n}(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = TensorDataset(torch.randn(512, {n}), torch.randint(0, 10, (512,)))
    loader = DataLoader(data, batch_size=args.batch, shuffle=True, num_workers=args.workers)
    model = Net{n}().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        loss = train_{n}(model, loader, optimizer, criterion, device)
        if args.save and epoch % 5 == 0:
            torch.save(model.state_dict(), f"{{args.save}}/{{epoch}}.pt")
        print(epoch, loss.item())
"#;

const PLAIN: &str = r##"
def parse_{n}(text, *, strict=False, limit={n}):
    """Reads one record a line."""
    records = []
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        key, _, value = line.partition("=")
        if strict and not value:
            raise ValueError(f"line {{number}}: no value for {{key!r}}")
        records.append({{"key": key.strip(), "value": value.strip(), "line": number}})
        if len(records) >= limit:
            break
    return sorted(records, key=lambda record: record["key"])
"##;

fn file(index: usize) -> String {
    let (head, body) = if index.is_multiple_of(2) {
        let head = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\nfrom torch.utils.data import DataLoader, TensorDataset\n";
        (head, TRAINING)
    } else {
        ("import os\nimport sys\n", PLAIN)
    };
    let mut text = head.to_owned();
    let mut n = index;
    while text.lines().count() < 250 {
        n += 1;
        let part = body.replace("{n}", &n.to_string()).replace("{{", "{").replace("}}", "}");
        text.push_str(&part);
    }
    text
}

/// CPU time of this process where the system tells it (in hundredths of a second, as Linux does);
/// on a busy machine it says more than the clock.
fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit(')').next().unwrap_or_default();
    let ticks = after.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<f64>().ok());
    ticks.sum::<f64>() / 100.0
}

fn main() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut lines, mut files) = (0, 0);
    while lines < LINES {
        let text = file(files);
        lines += text.lines().count();
        let path = folder.path().join(format!("d{:03}", files / 100));
        fs::create_dir_all(&path).expect("made");
        fs::write(path.join(format!("f{files}.py")), text).expect("written");
        files += 1;
    }
    let settings = Settings::find(folder.path(), &Overrides::default()).expect("settings");
    let paths: Vec<PathBuf> = vec![folder.path().to_owned()];
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (mut best, mut work) = (f64::MAX, f64::MAX);
    for _ in 0..5 {
        let (start, before) = (Instant::now(), cpu_seconds());
        let found = discover(&paths, &settings);
        let report = check_files(&found.files, &settings);
        best = best.min(start.elapsed().as_secs_f64());
        work = work.min(cpu_seconds() - before);
        assert_eq!((report.files, report.findings(), report.errors.len()), (files, 0, 0));
    }
    println!(
        "{files} files, {lines} lines, {cores} cores: {best:.2} s, {:.2} million lines/s; {work:.2} s of CPU time",
        lines as f64 / best / 1e6
    );

    let source = Source::from_bytes("f.py".to_owned(), file(0).into_bytes()).expect("UTF-8");
    let mut times: Vec<f64> = (0..200)
        .map(|_| {
            let start = Instant::now();
            let findings = check(&source, &rules::ALL).expect("it parses");
            assert!(findings.is_empty());
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!(
        "one file of {} lines: {:.2} ms median, {:.2} ms at worst",
        source.line_count(),
        times[100],
        times[199]
    );
}
