//! DELTA_BINARY_PACKED: stores numbers as differences. Each miniblock uses as many bits as its
//! largest difference needs.
//!
//! ```text
//! page      = varint(values per block), varint(miniblocks per block), varint(values), zigzag(first), block …
//! block     = zigzag(least difference), width: u8 for each miniblock, miniblock …
//! miniblock = differences above the least one, packed, least significant bit first
//! ```

use howdah_codec::ByteWriter as _;

const BLOCK: usize = 128;
const MINIBLOCKS: usize = 4;
const MINIBLOCK: usize = BLOCK / MINIBLOCKS;

/// Appends encoded numbers.
pub(super) fn encode(out: &mut Vec<u8>, values: &[i64]) {
    out.write_varint(BLOCK as u64);
    out.write_varint(MINIBLOCKS as u64);
    out.write_count(values.len());
    out.write_signed(values.first().copied().unwrap_or(0));
    let mut deltas = [0; BLOCK];
    let mut from = 0;
    while values.len() - from > 1 {
        let count = (values.len() - from - 1).min(BLOCK);
        // The differences may overflow; the reader's sums overflow likewise, which cancels out.
        let pairs = values[from..].iter().zip(&values[from + 1..]);
        for (delta, (before, after)) in deltas.iter_mut().zip(pairs) {
            *delta = after.wrapping_sub(*before);
        }
        encode_block(out, &deltas[..count]);
        from += count;
    }
}

fn encode_block(out: &mut Vec<u8>, deltas: &[i64]) {
    let least = deltas.iter().copied().min().unwrap_or(0);
    out.write_signed(least);
    let widths_at = out.len();
    out.resize(widths_at + MINIBLOCKS, 0);
    for (number, deltas) in deltas.chunks(MINIBLOCK).enumerate() {
        let above = |delta: i64| delta.wrapping_sub(least).cast_unsigned();
        let all = deltas.iter().fold(0, |all, delta| all | above(*delta));
        let width = u64::BITS - all.leading_zeros();
        out[widths_at + number] = width as u8;
        let end = out.len() + MINIBLOCK * width as usize / 8;
        pack(out, deltas.iter().map(|delta| above(*delta)), width);
        out.resize(end, 0);
    }
}

fn pack(out: &mut Vec<u8>, values: impl Iterator<Item = u64>, width: u32) {
    if width == 0 {
        return;
    }
    let (mut bits, mut bit_count) = (0_u64, 0);
    for value in values {
        bits |= value << bit_count;
        bit_count += width;
        if bit_count >= u64::BITS {
            out.extend_from_slice(&bits.to_le_bytes());
            bit_count -= u64::BITS;
            // The high bits of the value that did not fit.
            bits = value.checked_shr(width - bit_count).unwrap_or(0);
        }
    }
    out.extend_from_slice(&bits.to_le_bytes()[..bit_count.div_ceil(8) as usize]);
}

#[cfg(test)]
mod tests {
    use howdah_codec::ByteReader;
    use proptest::prelude::*;

    use super::*;

    /// Decodes by the specification.
    fn read(bytes: &[u8]) -> Vec<i64> {
        let mut bytes = ByteReader::new(bytes);
        let mut number = || bytes.varint().unwrap() as usize;
        let (block, miniblocks, count) = (number(), number(), number());
        let mut last = bytes.signed().unwrap();
        let mut values = vec![last];
        values.truncate(count);
        while values.len() < count {
            let least = bytes.signed().unwrap();
            let widths = bytes.bytes(miniblocks).unwrap();
            for width in widths {
                let packed = if values.len() < count {
                    bytes.bytes(block / miniblocks * usize::from(*width) / 8).unwrap()
                } else {
                    &[]
                };
                for at in 0..block / miniblocks {
                    if values.len() == count {
                        break;
                    }
                    let delta = (0..usize::from(*width)).fold(0_u64, |number, b| {
                        let at = at * usize::from(*width) + b;
                        number | u64::from(packed[at / 8] >> (at % 8) & 1) << b
                    });
                    last = last.wrapping_add(least).wrapping_add(delta.cast_signed());
                    values.push(last);
                }
            }
        }
        assert!(bytes.is_empty());
        values
    }

    proptest! {
        #[test]
        fn encoded_values_round_trip(
            seeds in proptest::collection::vec(any::<i64>(), 0..400),
            shift in 0_u32..64,
        ) {
            let values: Vec<i64> = seeds.iter().map(|seed| seed >> shift).collect();
            let mut out = Vec::new();
            encode(&mut out, &values);
            prop_assert_eq!(read(&out), values);
        }
    }

    #[test]
    fn widest_differences_round_trip() {
        let values = [i64::MIN, i64::MAX, 0, i64::MAX, i64::MIN, -1];
        let mut out = Vec::new();
        encode(&mut out, &values);
        assert_eq!(read(&out), values);
        out.clear();
        encode(&mut out, &[7; 1000]);
        assert!(out.len() < 60, "{}", out.len());
        assert_eq!(read(&out), [7; 1000]);
    }
}
