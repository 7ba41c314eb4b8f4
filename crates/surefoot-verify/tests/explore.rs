//! Scratch.
#![allow(clippy::unwrap_used)]
mod lab;
use lab::*;
use safetensors::Dtype;
use surefoot_verify::calibrate::Pass;
use surefoot_verify::capture::Disturbance;
use surefoot_verify::challenge::ChallengeSet;
use surefoot_verify::compare::compare;
use surefoot_verify::decision::Rule;

#[test]
fn explore() {
    let base = Weights::trained();
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, w: &Weights, d: Dtype| {
        let f = dir.path().join(name);
        w.write(&f, d);
        f
    };
    let a = write("a", base, Dtype::F32);
    write("a.rounded", base, Dtype::BF16);
    let set = ChallengeSet::keyed([5; 32], "x", VOCAB, 32, 32).unwrap();
    let reference = fingerprint(&a, &set, Options::new());
    println!("file {} bytes", reference.seal(None).unwrap().len());
    let go = |name: &str, f: &std::path::Path, pass: Pass| {
        let c = fingerprint(f, &set, Options { pass, ..Options::candidate() });
        let r = compare(&reference, &c, &Rule::default()).unwrap();
        let d = &r.decision;
        println!(
            "{name:24} {:9} {:10?} used {:2} e {:8.1} {:8.1} first {:?} | {}",
            d.verdict.to_string(),
            r.class,
            d.challenges_used,
            d.evidence.ln_e_different,
            d.evidence.ln_e_same,
            d.first_diverging.map(|s| s.to_string()),
            r.sites
                .iter()
                .map(|s| format!(
                    "{:.1e}/{:.1e} p{:.0e} {:.2}",
                    s.apart.fine, s.tolerance, s.apart.profile, s.excess
                ))
                .collect::<Vec<_>>()
                .join(" | ")
        );
    };
    let plain = Pass::plain(64);
    let bf = Pass { bf16: true, disturbance: Disturbance::Bf16 { seed: 0 }, ..plain };
    let bfd = Pass { bf16: true, disturbance: Disturbance::Bf16 { seed: 7 }, ..plain };
    go("again", &a, plain);
    go("batch 1", &a, Pass { group: 1, ..plain });
    go("streamed", &a, Pass { streamed: true, ..plain });
    go("bf16 at sites", &a, bf);
    let b = write("bf", base, Dtype::BF16);
    go("bf16 weights", &b, plain);
    go("bf16 all", &b, bf);
    go("bf16 all dither", &b, bfd);
    for bits in [8, 4] {
        go(&format!("int{bits}"), &write("q", &base.rounded(bits), Dtype::F32), plain);
        let q = write("q", &base.rounded(bits), Dtype::BF16);
        go(&format!("int{bits} bf16 weights"), &q, plain);
        go(&format!("int{bits} bf16"), &q, bf);
        go(&format!("int{bits} bf16d"), &q, bfd);
    }
    for rate in [1e-6, 1e-5, 1e-4, 1e-3] {
        let mut w = base.clone();
        w.step(&mut Adam::new(rate), 9999);
        go(&format!("adam step {rate}"), &write("s", &w, Dtype::F32), plain);
        go(&format!("adam step {rate} bf"), &write("s", &w, Dtype::BF16), bf);
    }
    for rate in [1e-4, 1e-3, 1e-2, 1e-1] {
        let mut w = base.clone();
        w.step(&mut Descent(rate), 9999);
        go(&format!("sgd step {rate}"), &write("s", &w, Dtype::F32), plain);
        go(&format!("sgd step {rate} bf"), &write("s", &w, Dtype::BF16), bf);
    }
    for share in [0.01, 0.03, 0.1] {
        go(
            &format!("lora {share}"),
            &write("s", &base.with_lora(&[2], 4, share), Dtype::F32),
            plain,
        );
        go(
            &format!("lora {share} bf"),
            &write("s", &base.with_lora(&[2], 4, share), Dtype::BF16),
            bf,
        );
    }
    for by in [1.02, 1.1] {
        let scaled = base.map(|n, _, x| {
            if n == "h.1.mlp.c_proj.weight" {
                x.iter_mut().for_each(|x| *x *= by)
            }
        });
        go(&format!("scaled {by}"), &write("s", &scaled, Dtype::F32), plain);
        go(&format!("scaled {by} bf"), &write("s", &scaled, Dtype::BF16), bf);
    }
    go("other seed", &write("s", &Weights::new(2, 4), Dtype::F32), plain);
    go("other depth", &write("s", &Weights::new(2, 3), Dtype::F32), plain);
}
