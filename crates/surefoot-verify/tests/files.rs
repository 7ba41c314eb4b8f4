//! Fingerprints and transcripts as files: what was written comes back, what was changed is found.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod lab;

use std::sync::OnceLock;

use lab::{Options, TestModels, VOCAB, fingerprint};
use proptest::prelude::*;
use surefoot_verify::challenge::ChallengeSet;
use surefoot_verify::decision::{DecisionRule, Verdict};
use surefoot_verify::fingerprint::Fingerprint;
use surefoot_verify::seal::{self, SecretKey};
use surefoot_verify::site::Site;
use surefoot_verify::transcript::Transcript;
use surefoot_verify::{hypervector, report};

/// A small fingerprint with noise, and one without.
fn pair() -> &'static (Fingerprint, Fingerprint) {
    static PAIR: OnceLock<(Fingerprint, Fingerprint)> = OnceLock::new();
    PAIR.get_or_init(|| {
        let shelf = TestModels::new();
        let set = ChallengeSet::keyed([1; 32], "files", VOCAB, 20, 8).unwrap();
        (
            fingerprint(&shelf.reference, &set, Options::new()),
            fingerprint(&shelf.reference, &set, Options::candidate()),
        )
    })
}

fn transcript() -> Transcript {
    let (reference, candidate) = pair();
    Transcript::of_models(reference.clone(), candidate.clone(), DecisionRule::default()).unwrap()
}

fn signed() -> &'static [u8] {
    static SIGNED: OnceLock<Vec<u8>> = OnceLock::new();
    SIGNED.get_or_init(|| transcript().seal(Some(&SecretKey::fresh().unwrap())).unwrap())
}

#[test]
fn what_was_written_comes_back() {
    let (reference, _) = pair();
    let bytes = reference.seal(None).unwrap();
    assert_eq!(&Fingerprint::open(&bytes).unwrap().0, reference);
    let (back, seal) = Transcript::open(signed()).unwrap();
    assert_eq!(back.comparison.decision.verdict, Verdict::Same);
    assert!(seal.signature.is_some());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_flipped_bit_anywhere_is_found(place in 0.0_f64..1.0, bit in 0_u32..8) {
        let mut bytes = signed().to_vec();
        let at = (place * bytes.len() as f64) as usize;
        bytes[at] ^= 1 << bit;
        prop_assert!(Transcript::open(&bytes).is_err(), "byte {} bit {}", at, bit);
    }

    /// Whoever seals anew can write what they like: it is read or refused, without a panic.
    #[test]
    fn letters_changed_behind_a_good_seal_never_panic(
        place in 0.0_f64..1.0, letter in "[0-9a-z\",:\\[\\]{}. -]", whole: bool,
    ) {
        let text = if whole {
            serde_json::to_string(&transcript()).unwrap()
        } else {
            serde_json::to_string(&pair().0).unwrap()
        };
        let at = (place * text.len() as f64) as usize;
        let changed = format!("{}{letter}{}", &text[..at], &text[at + 1..]);
        if let Ok(json) = serde_json::from_str::<serde_json::Value>(&changed) {
            let sealed = seal::seal(&json, None).unwrap();
            let _ = Fingerprint::open(&sealed);
            let _ = Transcript::open(&sealed);
        }
    }

    #[test]
    fn any_bytes_are_a_document_or_an_error(bytes: Vec<u8>) {
        prop_assert!(Fingerprint::open(&bytes).is_err());
        prop_assert!(Transcript::open(&bytes).is_err());
    }
}

/// Changed and sealed anew: the seal fits, so the contents have to speak.
#[test]
fn contents_that_do_not_fit_together_are_found_behind_a_good_seal() {
    let refused = |change: &dyn Fn(&mut Fingerprint), words: &str| {
        let mut forged = pair().0.clone();
        change(&mut forged);
        let bytes = seal::seal(&forged, None).unwrap();
        let error = Fingerprint::open(&bytes).unwrap_err().to_string();
        assert!(error.contains(words), "{words}: {error}");
    };
    refused(&|it| it.sketches[3][2].bits[5] ^= 1, "fit the sketches");
    refused(&|it| it.sketches[3][2].fine[5] += 1.0, "root");
    refused(&|it| it.sketches[3][2].scale += 1.0, "root");
    refused(&|it| it.challenges.sequences[0][0] ^= 1, "challenges");
    refused(&|it| it.commitment.replace_range(..1, "x"), "commitment");
    refused(&|it| it.root.replace_range(..1, "x"), "root");
    refused(&|it| it.vector[0] ^= 1, "vector");
    refused(&|it| drop(it.sketches.pop()), "challenge");
    refused(&|it| it.sites.truncate(6), "missing");
    refused(&|it| it.sites.swap(0, 1), "order");
    refused(&|it| it.model.blocks = 5000, "blocks");
    refused(&|it| it.version = 2, "version 2");
    refused(&|it| it.format = "other".to_owned(), "not a fingerprint");
    refused(&|it| drop(it.next.pop()), "next tokens");
    refused(&|it| it.noise.variants[0].runs.clear(), "calibration");
}

#[test]
fn a_verdict_that_the_contents_do_not_give_is_found() {
    let refused = |change: &dyn Fn(&mut Transcript), words: &str| {
        let mut forged = transcript();
        change(&mut forged);
        let bytes = seal::seal(&forged, None).unwrap();
        let error = Transcript::open(&bytes).unwrap_err().to_string();
        assert!(error.contains(words), "{words}: {error}");
    };
    refused(&|it| it.comparison.decision.verdict = Verdict::Different, "says DIFFERENT");
    refused(&|it| it.comparison.decision.evidence.ln_e_same += 1.0, "other evidence");
    refused(&|it| it.comparison.decision.challenges_used = 1, "other evidence");
    refused(&|it| it.rule.delta = 0.9, "other evidence");
    refused(&|it| it.rule.alpha = 0.0, "alpha");
    refused(&|it| it.version = 7, "version 7");
    refused(&|it| it.reference.root.replace_range(..1, "x"), "root");
}

#[test]
fn every_leaf_has_its_path_to_the_root() {
    let (fingerprint, _) = pair();
    for site in fingerprint.site_list() {
        let mut inclusion = fingerprint.prove(7, site).unwrap();
        inclusion.check().unwrap();
        inclusion
            .leaf
            .replace_range(100..101, if &inclusion.leaf[100..101] == "0" { "1" } else { "0" });
        assert!(inclusion.check().is_err());
    }
    assert!(fingerprint.prove(20, Site::Head).is_err());
    assert!(fingerprint.prove(0, Site::Block(9)).is_err());
}

#[test]
fn a_site_can_be_unbound_from_the_models_vector() {
    let (fingerprint, _) = pair();
    let sites = fingerprint.site_list();
    let words = fingerprint.vector.len();
    for (at, site) in sites.iter().enumerate() {
        let back = hypervector::bind(&fingerprint.vector, &hypervector::site_key(*site, words));
        let distance = |other: usize| {
            surefoot_verify::hamming::distance(&back, &fingerprint.site_vector(other))
        };
        let nearest = (0..sites.len()).min_by_key(|other| distance(*other)).unwrap();
        assert_eq!(nearest, at, "{site}");
    }
}

#[test]
fn a_page_says_what_was_decided_why_and_from_what() {
    let transcript = transcript();
    let page = report::Page::new(&transcript);
    assert_eq!(page.verdict.to_string(), "SAME");
    assert!(page.sentences[0].contains("less than the reference deviates from itself"));
    assert!(page.challenges_used > 0 && page.challenges_used <= page.curve.len());
    assert!(page.sites.iter().any(|site| site.site.to_string() == "block 3"));
    let root = ("reference root", transcript.reference.root.clone());
    assert!(page.facts.contains(&root), "{:?}", page.facts);
}
