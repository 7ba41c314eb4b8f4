//! What must be told apart, on a model that is trained here: the same weights run in other ways,
//! and every kind of change.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod lab;

use lab::{Options, TestModels, VOCAB, Weights, cases, fingerprint};
use safetensors::Dtype;
use surefoot_verify::calibrate::{Pass, PassPrecision};
use surefoot_verify::capture::Disturbance;
use surefoot_verify::challenge::ChallengeSet;
use surefoot_verify::compare::compare;
use surefoot_verify::decision::{DecisionRule, Verdict};
use surefoot_verify::site::{Site, SiteSelection};

fn challenges(key: u8) -> ChallengeSet {
    ChallengeSet::keyed([key; 32], "test", VOCAB, 32, 32).unwrap()
}

#[test]
fn every_case_gets_its_verdict_and_its_layer_within_32_challenges() {
    let shelf = TestModels::new();
    let set = challenges(5);
    let reference = fingerprint(&shelf.reference, &set, Options::new());
    for case in cases(&shelf) {
        let options = Options { pass: case.pass, ..Options::candidate() };
        let candidate = fingerprint(&case.folder, &set, options);
        let found = compare(&reference, &candidate, &DecisionRule::default()).unwrap();
        let (name, decision) = (case.name, &found.decision);
        assert_eq!(decision.verdict, case.verdict, "{name}: {:?}", found.sites);
        assert_eq!(decision.first_diverging, case.first, "{name}: {:?}", found.sites);
        assert!(decision.challenges_used <= 32, "{name}");
    }
}

/// False verdicts on real weights: other challenges and other chances each time.
#[test]
fn no_run_of_the_same_weights_is_called_different_and_no_rounded_one_the_same() {
    let shelf = TestModels::new();
    let own = shelf.put("own", Weights::trained(), Dtype::BF16);
    let int8 = shelf.put("int8", &Weights::trained().rounded(8), Dtype::BF16);
    let runs = 25;
    let (mut false_different, mut false_same) = (0, 0);
    for key in 0..runs {
        let set = challenges(100 + key);
        let reference = fingerprint(&shelf.reference, &set, Options::new());
        let disturbance = Disturbance::Bf16 { seed: 1000 + u64::from(key) };
        let pass = Pass { precision: PassPrecision::Bf16, disturbance, ..Pass::plain(64) };
        let verdict = |folder| {
            let candidate = fingerprint(folder, &set, Options { pass, ..Options::candidate() });
            compare(&reference, &candidate, &DecisionRule::default()).unwrap().decision.verdict
        };
        false_different += i32::from(verdict(&own) == Verdict::Different);
        false_same += i32::from(verdict(&int8) == Verdict::Same);
    }
    assert_eq!((false_different, false_same), (0, 0), "of {runs}");
}

#[test]
fn a_reference_in_bf16_tells_the_same_apart() {
    let shelf = TestModels::new();
    let set = challenges(3);
    let bf16 = Pass { precision: PassPrecision::Bf16, ..Pass::plain(64) };
    let reference = fingerprint(&shelf.reference, &set, Options { pass: bf16, ..Options::new() });
    let int8 = shelf.put("int8", &Weights::trained().rounded(8), Dtype::F32);
    for (folder, pass, verdict) in [
        (&shelf.reference, bf16, Verdict::Same),
        (&shelf.reference, Pass { group: 7, ..bf16 }, Verdict::Same),
        (&shelf.reference, Pass { streamed: true, ..bf16 }, Verdict::Same),
        (&shelf.reference, Pass::plain(64), Verdict::Same),
        (&int8, bf16, Verdict::Different),
        (&int8, Pass::plain(64), Verdict::Different),
    ] {
        let candidate = fingerprint(folder, &set, Options { pass, ..Options::candidate() });
        let found = compare(&reference, &candidate, &DecisionRule::default()).unwrap();
        assert_eq!(found.decision.verdict, verdict, "{pass:?}: {:?}", found.sites);
    }
}

#[test]
fn chosen_sites_are_fewer_and_still_find_a_change_between_them() {
    let shelf = TestModels::new();
    let set = challenges(9);
    let all = fingerprint(&shelf.reference, &set, Options::new());
    let auto = fingerprint(
        &shelf.reference,
        &set,
        Options { choice: SiteSelection::Auto, ..Options::new() },
    );
    assert!(auto.sites.len() < all.sites.len());
    assert_eq!(auto.sites[0].site, Site::Embeddings);
    assert_eq!(auto.sites.last().unwrap().site, Site::Head);
    let changed = shelf.put("changed", &Weights::trained().with_lora(&[2], 4, 0.1), Dtype::F32);
    let candidate = fingerprint(&changed, &set, Options::candidate());
    let found = compare(&auto, &candidate, &DecisionRule::default()).unwrap().decision;
    assert_eq!(found.verdict, Verdict::Different);
    assert!(found.first_diverging.unwrap() >= Site::Block(2));
}

#[test]
fn what_can_not_be_compared_gets_no_verdict() {
    let shelf = TestModels::new();
    let reference = fingerprint(&shelf.reference, &challenges(1), Options::new());
    let refused = |change: &dyn Fn(&mut surefoot_verify::fingerprint::Fingerprint), words: &str| {
        let mut candidate = fingerprint(&shelf.reference, &challenges(1), Options::candidate());
        change(&mut candidate);
        let error =
            compare(&reference, &candidate, &DecisionRule::default()).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    let other = fingerprint(&shelf.reference, &challenges(2), Options::candidate());
    let error = compare(&reference, &other, &DecisionRule::default()).unwrap_err().to_string();
    assert!(error.contains("different challenges"), "{error}");
    refused(&|it| it.model.vocab += 1, "vocabularies");
    refused(&|it| it.policy.bits = 1024, "bits");
    refused(
        &|it| {
            it.sites.remove(2);
            it.sketches.iter_mut().for_each(|sketches| drop(sketches.remove(2)));
        },
        "lacks the site 'block 1'",
    );
    // Without noise there is nothing to measure against.
    let bare = fingerprint(&shelf.reference, &challenges(1), Options::candidate());
    assert!(compare(&bare, &reference, &DecisionRule::default()).is_err());
}
