//! Vectors of 32 bytes: what the passes over a piece have in common.
//!
//! The loads are the only `unsafe` there is in them, beside the question whether the processor has AVX2.

use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_movemask_epi8};

/// The vector of these bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn load(bytes: &[u8; 32]) -> __m256i {
    #[expect(unsafe_code, reason = "put together from words, a load takes as long as all the rest")]
    // SAFETY: the array has as many bytes, and the load asks for no alignment.
    unsafe {
        _mm256_loadu_si256(bytes.as_ptr().cast())
    }
}

/// The highest bit of each byte, that of the first one lowest.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn bits(bytes: __m256i) -> u64 {
    u64::from(_mm256_movemask_epi8(bytes).cast_unsigned())
}
