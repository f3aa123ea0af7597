//! Snappy's block format: a length, then literals and copies of earlier bytes.
//!
//! Source: google/snappy, `format_description.txt`.

/// Copies refer to bytes of the same block, so that their offsets fit two bytes.
const BLOCK_BYTES: usize = 1 << 16;
/// Number of bits of a hash of four bytes.
const HASH_BITS: u32 = 13;
/// Longest copy of one element.
const COPY_BYTES_MAX: usize = 64;

/// Compresses bytes.
pub(super) fn compress(input: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(input.len() / 4 + 16);
    let mut length = input.len();
    while length > 0x7f {
        out.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    for block in input.chunks(BLOCK_BYTES) {
        compress_block(block, &mut out);
    }
    out
}

fn compress_block(block: &[u8], out: &mut Vec<u8>) {
    // The last position of each hash of four bytes; the first position is a valid guess, too.
    let mut positions = [0_u16; 1 << HASH_BITS];
    let (mut at, mut literal) = (0, 0);
    while let Some(four) = block[at..].first_chunk::<4>() {
        let hash = u32::from_le_bytes(*four).wrapping_mul(0x9e37_79b1) >> (32 - HASH_BITS);
        let earlier = usize::from(positions[hash as usize]);
        // Positions are below 2^16.
        positions[hash as usize] = at as u16;
        if earlier >= at || !block[earlier..].starts_with(four) {
            at += 1;
            continue;
        }
        let same = block[earlier..].iter().zip(&block[at..]).take_while(|(a, b)| a == b).count();
        push_literal(&block[literal..at], out);
        push_copy(at - earlier, same, out);
        at += same;
        literal = at;
    }
    push_literal(&block[literal..], out);
}

fn push_literal(bytes: &[u8], out: &mut Vec<u8>) {
    // Blocks have at most 2^16 bytes, so the length minus one fits two.
    let Some(length) = bytes.len().checked_sub(1) else { return };
    match length {
        0..60 => out.push((length as u8) << 2),
        60..256 => out.extend([60 << 2, length as u8]),
        _ => out.extend([61 << 2, length as u8, (length >> 8) as u8]),
    }
    out.extend_from_slice(bytes);
}

fn push_copy(offset: usize, mut bytes: usize, out: &mut Vec<u8>) {
    while bytes > 0 {
        let length = bytes.min(COPY_BYTES_MAX);
        out.extend([(length as u8 - 1) << 2 | 2, offset as u8, (offset >> 8) as u8]);
        bytes -= length;
    }
}

/// Decodes the elements that [`compress`] writes.
#[cfg(test)]
pub(super) fn decompress(mut input: &[u8]) -> Vec<u8> {
    let (mut length, mut shift) = (0, 0);
    loop {
        let byte = input[0];
        input = &input[1..];
        length |= usize::from(byte & 0x7f) << shift;
        shift += 7;
        if byte < 0x80 {
            break;
        }
    }
    let mut out = Vec::new();
    while let Some((&tag, rest)) = input.split_first() {
        input = rest;
        let size = usize::from(tag >> 2);
        if tag & 3 == 0 {
            let extra = size.saturating_sub(59);
            let length = match extra {
                0 => size,
                1 => usize::from(input[0]),
                _ => usize::from(input[0]) | usize::from(input[1]) << 8,
            };
            out.extend_from_slice(&input[extra..=extra + length]);
            input = &input[extra + length + 1..];
        } else {
            assert_eq!(tag & 3, 2);
            let offset = usize::from(input[0]) | usize::from(input[1]) << 8;
            (0..=size).for_each(|_| out.push(out[out.len() - offset]));
            input = &input[2..];
        }
    }
    assert_eq!(out.len(), length);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn compressed_bytes_round_trip(
            parts in proptest::collection::vec((0_u8..4, 0_usize..400), 0..40),
        ) {
            let mut input = Vec::new();
            for (seed, length) in parts {
                input.extend((0..length).map(|at| (at * usize::from(seed) / 3) as u8));
            }
            prop_assert_eq!(decompress(&compress(&input)), input);
        }
    }

    #[test]
    fn large_and_repetitive_bytes_round_trip() {
        let lines: String =
            (0..20_000).map(|n| format!("__name__ api_hits_{n} code 200")).collect();
        let compressed = compress(lines.as_bytes());
        assert!(compressed.len() < lines.len() / 2, "{} of {}", compressed.len(), lines.len());
        assert_eq!(decompress(&compressed), lines.as_bytes());
        let mut random = 1_u32;
        let noise: Vec<u8> = (0..200_000)
            .map(|_| {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (random >> 24) as u8
            })
            .collect();
        assert_eq!(decompress(&compress(&noise)), noise);
        assert_eq!(compress(b""), [0]);
        assert_eq!(compress(b"abc"), [3, 2 << 2, b'a', b'b', b'c']);
    }
}
