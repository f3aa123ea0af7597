//! One fuzz target under libFuzzer. `FUZZ_TARGET` names it; `scripts/fuzz` builds and runs this.

#![no_main]

use std::sync::OnceLock;

use howdah_fuzz::{TARGETS, Target, campaign::check};
use libfuzzer_sys::fuzz_target;

static TARGET: OnceLock<&'static Target> = OnceLock::new();

fuzz_target!(|input: &[u8]| {
    let target = TARGET.get_or_init(|| {
        let name = std::env::var("FUZZ_TARGET").expect("FUZZ_TARGET names the target");
        let named = TARGETS.iter().find(|target| target.name == name);
        named.unwrap_or_else(|| panic!("no fuzz target is called {name:?}"))
    });
    if input.len() <= target.bytes_max
        && let Err(broken_promise) = check(target, input)
    {
        panic!("{broken_promise}");
    }
});
