use proptest::prelude::*;

use super::*;

fn varint(value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    out.write_varint(value);
    out
}

/// Generates numbers of every length. Uniformly distributed ones would nearly all have the maximum
/// length.
fn number() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0..u64::BITS).prop_map(|(number, shift)| number >> shift)
}

proptest! {
    #[test]
    fn values_round_trip(number in number(), signed: i64, shift in 0..64_u32, text: String) {
        let signed = signed >> shift;
        let mut out = Vec::new();
        out.write_varint(number);
        out.write_signed(signed);
        out.write_text(&text);
        let mut reader = ByteReader::new(&out);
        prop_assert_eq!(reader.varint(), Ok(number));
        prop_assert_eq!(reader.signed(), Ok(signed));
        prop_assert_eq!(reader.text(), Ok(&text[..]));
        prop_assert!(reader.is_empty());
    }

    #[test]
    fn truncated_values_are_errors(number in number(), text: String) {
        let whole = varint(number);
        for end in 0..whole.len() {
            let read = ByteReader::new(&whole[..end]).varint();
            prop_assert_eq!(read, Err(CodecError::Truncated));
        }
        let mut whole = Vec::new();
        whole.write_text(&text);
        for end in 0..whole.len() {
            prop_assert_eq!(ByteReader::new(&whole[..end]).text(), Err(CodecError::Truncated));
        }
    }

    #[test]
    fn varint_has_a_byte_for_every_seven_bits(number in number()) {
        let bits = (u64::BITS - number.leading_zeros()).max(1);
        prop_assert_eq!(varint(number).len(), bits.div_ceil(7) as usize);
    }

    #[test]
    fn padded_varint_is_accepted_up_to_ten_bytes(number in number(), zeros in 0..12_usize) {
        let mut padded = varint(number);
        if zeros > 0 {
            *padded.last_mut().unwrap() |= 0x80;
            padded.extend(std::iter::repeat_n(0x80, zeros - 1));
            padded.push(0);
        }
        let mut reader = ByteReader::new(&padded);
        if padded.len() <= 10 {
            prop_assert_eq!(reader.varint(), Ok(number));
            prop_assert!(reader.is_empty());
        } else {
            prop_assert_eq!(reader.varint(), Err(CodecError::NumberTooLarge));
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic_or_exceed_bounds(bytes: Vec<u8>, max in 0..300_usize) {
        let mut reader = ByteReader::new(&bytes);
        let numbers = std::iter::from_fn(|| reader.varint().ok()).count();
        prop_assert!(numbers <= bytes.len());
        let _ = ByteReader::new(&bytes).text();
        let mut reader = ByteReader::new(&bytes);
        if let Ok(count) = reader.count() {
            prop_assert!(reader.bytes(count).is_ok());
        }
        let count = ByteReader::new(&bytes).count_up_to(max);
        prop_assert!(count.is_err() || count.is_ok_and(|count| count <= max));
    }
}

#[test]
fn specification_examples_encode() {
    // From "Encoding" on protobuf.dev, and appendix C of the DWARF standard, version 5.
    for (number, bytes) in [(150, &b"\x96\x01"[..]), (127, b"\x7f"), (128, b"\x80\x01")] {
        assert_eq!(varint(number), bytes);
    }
    let pairs = [(0, 0), (-1, 1), (1, 2), (-2, 3), (i64::MAX, u64::MAX - 1), (i64::MIN, u64::MAX)];
    for (value, encoded) in pairs {
        assert_eq!(zigzag(value), encoded);
        assert_eq!(unzigzag(encoded), value);
    }
}

#[test]
fn number_over_64_bits_is_rejected() {
    let largest = varint(u64::MAX);
    assert_eq!(largest, [&[0xff; 9][..], &[1]].concat());
    assert_eq!(ByteReader::new(&largest).varint(), Ok(u64::MAX));
    for last in [2, 0x7f, 0x80, 0x81, 0xff] {
        let bytes = [&[0xff; 9][..], &[last, 0]].concat();
        assert_eq!(ByteReader::new(&bytes).varint(), Err(CodecError::NumberTooLarge));
    }
    assert_eq!(ByteReader::new(&varint(1 << 32)).narrow::<u32>(), Err(CodecError::NumberTooLarge));
    assert_eq!(ByteReader::new(&varint(u32::MAX.into())).narrow(), Ok(u32::MAX));
}

#[test]
fn counts_are_bounded_by_data_or_by_limit() {
    let announced = |count| [varint(count), vec![0; 3]].concat();
    assert_eq!(ByteReader::new(&announced(3)).count(), Ok(3));
    for count in [4, u64::MAX] {
        assert_eq!(ByteReader::new(&announced(count)).count(), Err(CodecError::Truncated));
        let limited = ByteReader::new(&announced(count)).count_up_to(3);
        assert_eq!(limited, Err(CodecError::CountTooLarge));
    }
    assert_eq!(ByteReader::new(&varint(3)).count_up_to(3), Ok(3));
}

#[test]
fn text_that_is_not_utf8_is_an_error() {
    assert_eq!(ByteReader::new(b"\x02\xc3\x28").text(), Err(CodecError::InvalidUtf8));
}

#[test]
fn bytes_beyond_the_end_are_an_error() {
    let mut reader = ByteReader::new(b"abc");
    assert_eq!(reader.array(), Ok(*b"ab"));
    assert_eq!(reader.array::<2>(), Err(CodecError::Truncated));
    assert_eq!(reader.bytes(2), Err(CodecError::Truncated));
    assert_eq!(reader.bytes(1), Ok(&b"c"[..]));
    assert_eq!(reader.byte(), Err(CodecError::Truncated));
}
