//! The memory limit of an input, counted by the global allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Enough for the windows of a stream and one message in each direction with its result. An input that needs more has
/// bypassed a limit.
const MOST_BYTES: usize = 64 << 20;

#[global_allocator]
static COUNTED: Counted = Counted;
static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counted;

/// Runs `work` and panics if it held more memory at once than the limit.
pub(crate) fn bounded(work: impl FnOnce()) {
    let before = HELD.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    work();
    let bytes = PEAK.load(Ordering::Relaxed).saturating_sub(before);
    assert!(bytes <= MOST_BYTES, "{bytes} bytes were held at once, and {MOST_BYTES} are the most");
}

fn count(bytes: usize) {
    let held = HELD.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(held, Ordering::Relaxed);
}

// SAFETY: every call is passed to the system's allocator unchanged.
#[expect(unsafe_code, reason = "an allocator is unsafe by its nature")]
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller upholds the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract, which is the same.
        unsafe { System.dealloc(pointer, layout) }
    }
}
