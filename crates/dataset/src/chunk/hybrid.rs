//! The hybrid of runs and packed bits: how Parquet writes levels and indices into a dictionary.
//!
//! ```text
//! run     = varint(length << 1), the value in as many bytes as its width needs
//! packed  = varint(groups of 8 values << 1 | 1), the values, least significant bit first
//! ```

/// Fewest equal values that make a run: a packed group of eight is cut short for it.
const RUN_MIN: usize = 8;

/// Appends values of so many bits each.
pub(super) fn put<T: Copy + PartialEq + Into<u32>>(out: &mut Vec<u8>, values: &[T], width: u32) {
    let mut packed_from = 0;
    let mut at = 0;
    while at < values.len() {
        let rest = &values[at..];
        let run = rest.iter().take_while(|value| **value == rest[0]).count();
        if run >= RUN_MIN {
            put_packed(out, &values[packed_from..at], width);
            put_run(out, rest[0].into(), run, width);
            at += run;
            packed_from = at;
        } else {
            // Runs begin where a group does, as groups are whole.
            at += rest.len().min(8);
        }
    }
    put_packed(out, &values[packed_from..], width);
}

/// Appends one value so many times.
pub(super) fn put_run(out: &mut Vec<u8>, value: u32, length: usize, width: u32) {
    if length > 0 {
        put_varint(out, (length as u64) << 1);
        out.extend_from_slice(&value.to_le_bytes()[..width.div_ceil(8) as usize]);
    }
}

/// Only the last group of all may have fewer than eight values.
fn put_packed<T: Copy + Into<u32>>(out: &mut Vec<u8>, values: &[T], width: u32) {
    if values.is_empty() {
        return;
    }
    let groups = values.len().div_ceil(8);
    put_varint(out, (groups as u64) << 1 | 1);
    let end = out.len() + groups * width as usize;
    let (mut bits, mut held) = (0_u64, 0);
    for value in values {
        bits |= u64::from((*value).into()) << held;
        held += width;
        if held >= 32 {
            out.extend_from_slice(&(bits as u32).to_le_bytes());
            bits >>= 32;
            held -= 32;
        }
    }
    out.extend_from_slice(&bits.to_le_bytes()[..held.div_ceil(8) as usize]);
    out.resize(end, 0);
}

/// Appends a number, seven bits a byte.
pub(super) fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Bits that a number needs.
pub(super) fn width_of(number: u32) -> u32 {
    u32::BITS - number.leading_zeros()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The reverse, by the specification.
    fn read(mut bytes: &[u8], width: u32, count: usize) -> Vec<u32> {
        let mut values = Vec::new();
        while values.len() < count {
            let mut header = 0_u64;
            for shift in (0..).step_by(7) {
                let byte = bytes[0];
                bytes = &bytes[1..];
                header |= u64::from(byte & 0x7F) << shift;
                if byte < 0x80 {
                    break;
                }
            }
            let length = (header >> 1) as usize;
            if header & 1 == 0 {
                let (value, rest) = bytes.split_at(width.div_ceil(8) as usize);
                let value =
                    value.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte));
                values.extend(std::iter::repeat_n(value, length));
                bytes = rest;
            } else {
                let (packed, rest) = bytes.split_at(length * width as usize);
                let bit = |at: usize| u32::from(packed[at / 8] >> (at % 8) & 1);
                let value = |at: usize| {
                    (0..width)
                        .fold(0, |number, b| number | bit(at * width as usize + b as usize) << b)
                };
                values.extend((0..length * 8).map(value));
                bytes = rest;
            }
        }
        assert!(bytes.is_empty());
        values.truncate(count);
        values
    }

    proptest! {
        #[test]
        fn what_is_put_is_read(
            runs in proptest::collection::vec((any::<u32>(), 1_usize..40), 0..20),
            width in 0_u32..=32,
        ) {
            let mask = u32::MAX.checked_shr(32 - width).unwrap_or(0);
            let values: Vec<u32> = runs
                .iter()
                .flat_map(|(value, length)| {
                    // Short ones are no runs.
                    let step = u32::from(*length < 20);
                    (0..*length as u32).map(move |at| value.wrapping_add(at * step) & mask)
                })
                .collect();
            let mut out = Vec::new();
            put(&mut out, &values, width);
            prop_assert_eq!(read(&out, width, values.len()), values);
        }
    }

    #[test]
    fn the_example_of_the_specification() {
        let mut out = Vec::new();
        put(&mut out, &[0_u32, 1, 2, 3, 4, 5, 6, 7], 3);
        assert_eq!(out, [0x03, 0b1000_1000, 0b1100_0110, 0b1111_1010]);
        assert_eq!((width_of(0), width_of(1), width_of(255), width_of(256)), (0, 1, 8, 9));
    }
}
