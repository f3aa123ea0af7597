//! Vectors of 32 bytes, shared by the scans of a chunk.
//!
//! The loads are the only `unsafe` code of the scans, except for the calls after the AVX2 check.

use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_movemask_epi8};

/// Loads 32 bytes, without requirements on their alignment.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn load(bytes: &[u8; 32]) -> __m256i {
    #[expect(
        unsafe_code,
        reason = "a load assembled from words takes as long as the rest of the scan"
    )]
    // SAFETY: the array has 32 bytes, and the load needs no alignment.
    unsafe {
        _mm256_loadu_si256(bytes.as_ptr().cast())
    }
}

/// Returns the highest bit of each byte, with that of the first byte as the lowest bit.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn bits(bytes: __m256i) -> u64 {
    u64::from(_mm256_movemask_epi8(bytes).cast_unsigned())
}
