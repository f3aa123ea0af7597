//! The RLE/bit-packing hybrid: how Parquet encodes levels and dictionary indexes.
//!
//! ```text
//! run     = varint(length << 1), the value in as many bytes as its width needs
//! packed  = varint(groups of 8 values << 1 | 1), the values, least significant bit first
//! ```

use howdah_codec::ByteWriter as _;

/// Minimum number of equal values for a run; shorter runs are bit-packed.
const RUN_MIN: usize = 8;

/// Appends values of `width` bits each.
pub(super) fn encode<T: Copy + PartialEq + Into<u32>>(out: &mut Vec<u8>, values: &[T], width: u32) {
    let mut packed_from = 0;
    let mut at = 0;
    while at < values.len() {
        let rest = &values[at..];
        let run = rest.iter().take_while(|value| **value == rest[0]).count();
        if run >= RUN_MIN {
            encode_packed(out, &values[packed_from..at], width);
            encode_run(out, rest[0].into(), run, width);
            at += run;
            packed_from = at;
        } else {
            // Runs start at group boundaries only, since packed groups are complete.
            at += rest.len().min(8);
        }
    }
    encode_packed(out, &values[packed_from..], width);
}

/// Appends a run of one value.
pub(super) fn encode_run(out: &mut Vec<u8>, value: u32, length: usize, width: u32) {
    if length > 0 {
        out.write_varint((length as u64) << 1);
        out.extend_from_slice(&value.to_le_bytes()[..width.div_ceil(8) as usize]);
    }
}

/// Appends values of `width` bits each, bit-packed in groups of eight. Only the call that ends the
/// encoded sequence may have an incomplete last group, which is padded with zeros.
fn encode_packed<T: Copy + Into<u32>>(out: &mut Vec<u8>, values: &[T], width: u32) {
    if values.is_empty() {
        return;
    }
    let groups = values.len().div_ceil(8);
    out.write_varint((groups as u64) << 1 | 1);
    let end = out.len() + groups * width as usize;
    let (mut bits, mut bit_count) = (0_u64, 0);
    for value in values {
        bits |= u64::from((*value).into()) << bit_count;
        bit_count += width;
        if bit_count >= 32 {
            out.extend_from_slice(&(bits as u32).to_le_bytes());
            bits >>= 32;
            bit_count -= 32;
        }
    }
    out.extend_from_slice(&bits.to_le_bytes()[..bit_count.div_ceil(8) as usize]);
    out.resize(end, 0);
}

/// Returns the number of bits needed for a number.
pub(super) fn bit_width(number: u32) -> u32 {
    u32::BITS - number.leading_zeros()
}

#[cfg(test)]
mod tests {
    use howdah_codec::ByteReader;
    use proptest::prelude::*;

    use super::*;

    /// Decodes by the specification.
    fn read(bytes: &[u8], width: u32, count: usize) -> Vec<u32> {
        let mut bytes = ByteReader::new(bytes);
        let mut values = Vec::new();
        while values.len() < count {
            let header = bytes.varint().unwrap();
            let length = (header >> 1) as usize;
            if header & 1 == 0 {
                let value = bytes.bytes(width.div_ceil(8) as usize).unwrap();
                let value =
                    value.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte));
                values.extend(std::iter::repeat_n(value, length));
            } else {
                let packed = bytes.bytes(length * width as usize).unwrap();
                let bit = |at: usize| u32::from(packed[at / 8] >> (at % 8) & 1);
                let value = |at: usize| {
                    (0..width)
                        .fold(0, |number, b| number | bit(at * width as usize + b as usize) << b)
                };
                values.extend((0..length * 8).map(value));
            }
        }
        assert!(bytes.is_empty());
        values.truncate(count);
        values
    }

    proptest! {
        #[test]
        fn encoded_values_round_trip(
            runs in proptest::collection::vec((any::<u32>(), 1_usize..40), 0..20),
            width in 0_u32..=32,
        ) {
            let mask = u32::MAX.checked_shr(32 - width).unwrap_or(0);
            let values: Vec<u32> = runs
                .iter()
                .flat_map(|(value, length)| {
                    // Short repetitions are not runs.
                    let step = u32::from(*length < 20);
                    (0..*length as u32).map(move |at| value.wrapping_add(at * step) & mask)
                })
                .collect();
            let mut out = Vec::new();
            encode(&mut out, &values, width);
            prop_assert_eq!(read(&out, width, values.len()), values);
        }
    }

    #[test]
    fn example_of_specification_is_encoded() {
        let mut out = Vec::new();
        encode(&mut out, &[0_u32, 1, 2, 3, 4, 5, 6, 7], 3);
        assert_eq!(out, [0x03, 0b1000_1000, 0b1100_0110, 0b1111_1010]);
        assert_eq!((bit_width(0), bit_width(1), bit_width(255), bit_width(256)), (0, 1, 8, 9));
    }
}
