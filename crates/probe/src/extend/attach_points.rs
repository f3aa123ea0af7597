//! Chooses the points to attach to: those where a hit is cheapest.
//!
//! ```text
//! LockRelationForExtension        entry ─ … ─ call LockAcquire ─ … ─ je ─ … ─ ret
//!   with frame pointers           request                                   acquired
//!   without                                   request                acquired
//! UnlockRelationForExtension      entry ─ … ─ call LockRelease ─ …
//!   with frame pointers           release
//!   without                                   release
//! ```
//!
//! The kernel emulates some instructions, such as calls, and single-steps all others, which costs
//! more. If it would single-step the instruction at a function's entry, the request or release is
//! traced at the call shown above. The relation is then identified by the lock's tag, which the
//! first argument of that call points to. Both calls are in the basic block at the function's
//! entry, so every call of the function executes them once.

use crate::{
    basic_block::{InstructionKind, instructions},
    bpf::{Point, UprobeKind},
    calibrate::{HitCost, is_emulated},
    error::ProbeError,
    extend::{LOCK, UNLOCK},
    traced_server::TracedServer,
};

/// The points where a lock is requested unconditionally, acquired and released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AttachPoints {
    pub(super) request: Point,
    /// Whether the first argument at `request` is the lock's tag instead of the relation.
    pub(super) has_tag: bool,
    pub(super) acquired: (Point, UprobeKind),
    pub(super) release: Point,
    is_release_emulated: bool,
    is_request_emulated: bool,
}

impl AttachPoints {
    pub(super) fn for_server(traced: &TracedServer<'_>) -> Result<Self, ProbeError> {
        let is_cheap = |symbol| Ok::<_, ProbeError>(is_emulated(&traced.entry_code(symbol)?));
        let (is_ask_emulated, is_release_emulated) = (is_cheap(LOCK)?, is_cheap(UNLOCK)?);
        let entry = traced.entry_point(LOCK)?;
        let mut points = Self {
            request: entry,
            has_tag: false,
            acquired: (entry, UprobeKind::Return),
            release: traced.entry_point(UNLOCK)?,
            is_release_emulated,
            is_request_emulated: is_ask_emulated,
        };
        if !is_ask_emulated {
            let (code, target) = traced.code_and_distance(LOCK, "LockAcquire")?;
            if let Some([call, after]) = find_call_and_jump(&code, target) {
                points.request = traced.point_at(LOCK, call)?;
                points.has_tag = true;
                points.acquired = (traced.point_at(LOCK, after)?, UprobeKind::Entry);
                points.is_request_emulated = true;
            }
        }
        if !is_release_emulated {
            let (code, target) = traced.code_and_distance(UNLOCK, "LockRelease")?;
            if let Some(call) = find_call(&code, target) {
                points.release = traced.point_at(UNLOCK, call)?;
                points.is_release_emulated = true;
            }
        }
        Ok(points)
    }

    /// Returns the time that tracing a lock costs the backend that takes it.
    pub(super) fn cost(&self, hit: HitCost) -> std::time::Duration {
        let of = |is_emulated| if is_emulated { hit.emulated } else { hit.stepped };
        of(self.is_request_emulated) + hit.emulated + of(self.is_release_emulated)
    }
}

/// Returns the offset of the call of `target` in the basic block.
fn find_call(code: &[u8], target: i64) -> Option<u64> {
    let calls = |kind| kind == InstructionKind::Call(target);
    instructions(code).find(|found| calls(found.kind)).map(|found| found.at as u64)
}

/// Returns the offsets of the call of `target` and of the jump after it; `None` if the first
/// emulated instruction after the call is not a jump.
fn find_call_and_jump(code: &[u8], target: i64) -> Option<[u64; 2]> {
    let call = find_call(code, target)?;
    let mut following = instructions(code).filter(|found| found.at as u64 > call);
    let after = following.find(|found| found.kind.is_emulated())?;
    // That instruction must be a jump: if it were a call, the called function might not return.
    (after.kind == InstructionKind::Jump).then_some([call, after.at as u64])
}

#[test]
fn call_is_used_only_with_an_emulated_jump_after_it() {
    // sub $8, %rsp; call 16 after the entry; test %eax, %eax; je; …
    let code = [0x48, 0x83, 0xec, 8, 0xe8, 7, 0, 0, 0, 0x85, 0xc0, 0x74, 5, 0x90, 0x90, 0xc3];
    assert_eq!(find_call_and_jump(&code, 16), Some([4, 11]));
    assert_eq!(find_call(&code, 16), Some(4));
    assert_eq!(find_call_and_jump(&code, 17), None, "another function is called");
    assert_eq!(find_call_and_jump(&code[..11], 16), None, "no emulated instruction follows");
}
