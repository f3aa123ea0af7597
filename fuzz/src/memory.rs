//! How much memory a piece of code holds at most: the global allocator of the fuzzer counts.
//!
//! Counting is per thread, so campaigns on several threads do not see each other. It is not a
//! profile: memory that another thread frees stays counted here.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

/// Runs `work`; gives also the most bytes that it held at one time, beyond what was held before.
pub fn peak_bytes<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    PEAK.set(before);
    let result = work();
    let peak = PEAK.get().saturating_sub(before);
    (result, usize::try_from(peak).unwrap_or(0))
}

thread_local! {
    // Constant and without a destructor, so that reaching them allocates nothing.
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

struct Meter;

#[global_allocator]
static METER: Meter = Meter;

/// Requests above this are refused, which aborts: the line between a length that was believed and
/// one that was checked.
const REQUEST_BYTES_MAX: usize = 1 << 32;

impl Meter {
    fn grew(bytes: usize) {
        let held = HELD.get().saturating_add_unsigned(bytes);
        HELD.set(held);
        PEAK.set(PEAK.get().max(held));
    }

    fn shrank(bytes: usize) {
        HELD.set(HELD.get().saturating_sub_unsigned(bytes));
    }
}

#[expect(
    unsafe_code,
    reason = "an allocator is an unsafe trait; each method hands on to the system's"
)]
// SAFETY: memory comes from `System` and goes back to it with the layout that it was asked with;
// the counters are plain numbers.
unsafe impl GlobalAlloc for Meter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > REQUEST_BYTES_MAX {
            return std::ptr::null_mut();
        }
        Self::grew(layout.size());
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() > REQUEST_BYTES_MAX {
            return std::ptr::null_mut();
        }
        Self::grew(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if size > REQUEST_BYTES_MAX {
            return std::ptr::null_mut();
        }
        Self::grew(size);
        Self::shrank(layout.size());
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        Self::shrank(layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[test]
fn the_peak_is_counted_not_the_end() {
    let (len, bytes) = peak_bytes(|| {
        drop(vec![0_u8; 100_000]);
        vec![1_u8; 1_000].len()
    });
    assert_eq!(len, 1_000);
    assert!((100_000..110_000).contains(&bytes), "{bytes}");
}
