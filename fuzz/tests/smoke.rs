//! Runs every target briefly.

use howdah_fuzz::{Campaign, TARGETS};

/// Fixed, so that the result is reproducible; other seeds find other inputs.
const SEED: u64 = 20_261_120;

#[test]
fn every_target_keeps_its_promises() {
    let mut failures = Vec::new();
    for target in TARGETS {
        let mut campaign = Campaign::new(target, SEED);
        let failure = (0..target.smoke).find_map(|_| {
            let input = campaign.input();
            campaign.run(&input).err()
        });
        failures.extend(failure.map(|failure| failure.to_string()));
        assert!(campaign.seen() > 1, "{} does the same with every input", target.name);
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

#[test]
fn targets_have_names_of_their_own() {
    let mut names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), TARGETS.len());
}
