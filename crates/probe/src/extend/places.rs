//! Where the programs are attached: where a hit is cheapest.
//!
//! ```text
//! LockRelationForExtension        entry ─ … ─ call LockAcquire ─ … ─ je ─ … ─ ret
//!   with frame pointers           ask                                       got
//!   without                                   ask                    got
//! UnlockRelationForExtension      entry ─ … ─ call LockRelease ─ …
//!   with frame pointers           release
//!   without                                   release
//! ```
//!
//! Where the entry is an instruction that the kernel has to step over, the call within is taken instead, which
//! it emulates. There the relation is told by the lock's tag, which the first argument points to. Both
//! calls are passed once by each call of the function, on the straight line from its entry.

use crate::{
    bpf::{Point, Side},
    calibrate::{HitCost, is_emulated},
    error::Error,
    extend::{ASK, RELEASE},
    straight::{Kind, instructions},
    traced::Traced,
};

/// Where a lock is asked for with a wait, where it was got, and where it is let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Places {
    pub(super) ask: Point,
    /// At `ask`, the first argument is the lock's tag, not the relation.
    pub(super) has_tag: bool,
    pub(super) got: (Point, Side),
    pub(super) release: Point,
    is_release_emulated: bool,
    is_ask_emulated: bool,
}

impl Places {
    pub(super) fn of(traced: &Traced<'_>) -> Result<Self, Error> {
        let is_cheap = |symbol| Ok::<_, Error>(is_emulated(&traced.code_of(symbol)?));
        let (is_ask_emulated, is_release_emulated) = (is_cheap(ASK)?, is_cheap(RELEASE)?);
        let entry = traced.function(ASK)?;
        let mut places = Self {
            ask: entry,
            has_tag: false,
            got: (entry, Side::Return),
            release: traced.function(RELEASE)?,
            is_release_emulated,
            is_ask_emulated,
        };
        if !is_ask_emulated {
            let (code, target) = traced.code_and_distance(ASK, "LockAcquire")?;
            if let Some([call, after]) = call_and_after(&code, target) {
                places.ask = traced.within(ASK, call)?;
                places.has_tag = true;
                places.got = (traced.within(ASK, after)?, Side::Entry);
                places.is_ask_emulated = true;
            }
        }
        if !is_release_emulated {
            let (code, target) = traced.code_and_distance(RELEASE, "LockRelease")?;
            if let Some(call) = call(&code, target) {
                places.release = traced.within(RELEASE, call)?;
                places.is_release_emulated = true;
            }
        }
        Ok(places)
    }

    /// What a lock costs the process that takes it.
    pub(super) fn cost(&self, hit: HitCost) -> std::time::Duration {
        let of = |is_emulated| if is_emulated { hit.emulated } else { hit.stepped };
        of(self.is_ask_emulated) + hit.emulated + of(self.is_release_emulated)
    }
}

/// Where the function that begins at `target` is called on the straight line.
fn call(code: &[u8], target: i64) -> Option<u64> {
    let calls = |kind| kind == Kind::Call(target);
    instructions(code).find(|found| calls(found.kind)).map(|found| found.at as u64)
}

/// The same, and the first place behind that the kernel emulates.
fn call_and_after(code: &[u8], target: i64) -> Option<[u64; 2]> {
    let call = call(code, target)?;
    let mut behind = instructions(code).filter(|found| found.at as u64 > call);
    let after = behind.find(|found| found.kind.is_emulated())?;
    // A call to something else may be one that does not come back.
    (after.kind == Kind::Jump).then_some([call, after.at as u64])
}

#[test]
fn a_call_is_taken_only_with_a_place_behind_it() {
    // sub $8, %rsp; call 16 behind the entry; test %eax, %eax; je; …
    let code = [0x48, 0x83, 0xec, 8, 0xe8, 7, 0, 0, 0, 0x85, 0xc0, 0x74, 5, 0x90, 0x90, 0xc3];
    assert_eq!(call_and_after(&code, 16), Some([4, 11]));
    assert_eq!(call(&code, 16), Some(4));
    assert_eq!(call_and_after(&code, 17), None, "another function is called");
    assert_eq!(call_and_after(&code[..11], 16), None, "nothing behind is cheap");
}
