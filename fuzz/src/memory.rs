//! Measures the peak memory of a piece of code, with a global allocator that counts.
//!
//! Counts are per thread, so campaigns on several threads do not affect each other. Memory freed by
//! another thread stays counted on the thread that allocated it.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

/// Runs `work`, and returns its result and the most bytes it had allocated at one time.
pub fn peak_bytes<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    PEAK.set(before);
    let result = work();
    let peak = PEAK.get().saturating_sub(before);
    (result, usize::try_from(peak).unwrap_or(0))
}

thread_local! {
    // Constant and without a destructor, so that the first access allocates nothing.
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

struct Meter;

#[global_allocator]
static METER: Meter = Meter;

/// Larger requests are refused, which aborts: they come from a length that was not checked.
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
// SAFETY: memory comes from `System` and is returned to it with the layout it was requested with;
// the counters are plain numbers.
unsafe impl GlobalAlloc for Meter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > REQUEST_BYTES_MAX {
            return std::ptr::null_mut();
        }
        Self::grew(layout.size());
        // SAFETY: the caller upholds the requirements of this method, which are those of `System`.
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
