//! Encodes rows of numbers as differences from the previous row.

use howdah_codec::{ByteReader, ByteWriter as _, unzigzag, zigzag};

use super::error::CorruptFrame;

/// The number in a field; `None` if the field has no value.
pub(super) type DeltaField = Option<i64>;

/// Encodes `now` as its difference from `before`: bit masks of the fields that differ and of those
/// that now have no value, then the values. Fields selected by the bit mask `clock` are encoded
/// relative to `clock_us`, because a new timestamp is unrelated to the previous one.
pub(super) fn encode(
    out: &mut Vec<u8>,
    now: &[DeltaField],
    before: &[DeltaField],
    clock: u64,
    clock_us: i64,
) {
    let mut changed = 0_u64;
    let mut none = 0_u64;
    for (at, (now, before)) in now.iter().zip(before).enumerate() {
        changed |= u64::from(now != before) << at;
        none |= u64::from(now != before && now.is_none()) << at;
    }
    out.write_varint(changed);
    if changed == 0 {
        return;
    }
    out.write_varint(none);
    for (at, (now, before)) in now.iter().zip(before).enumerate() {
        if let Some(value) = now.filter(|_| changed >> at & 1 == 1) {
            out.write_signed(match clock >> at & 1 {
                1 => clock_us.wrapping_sub(value),
                _ => value.wrapping_sub(before.unwrap_or(0)),
            });
        }
    }
}

/// Decodes the output of [`encode`]: `fields` holds the previous values, and is updated to the new
/// ones.
pub(super) fn decode(
    input: &mut ByteReader<'_>,
    fields: &mut [DeltaField],
    clock: u64,
    clock_us: i64,
) -> Result<(), CorruptFrame> {
    let changed = input.varint()?;
    if changed == 0 {
        return Ok(());
    }
    if fields.len() < 64 && changed >> fields.len() != 0 {
        return Err(CorruptFrame::Reference);
    }
    let none = input.varint()?;
    for (at, field) in fields.iter_mut().enumerate() {
        if changed >> at & 1 == 0 {
            continue;
        }
        *field = match none >> at & 1 {
            1 => None,
            _ => Some(match (clock >> at & 1, input.signed()?) {
                (1, value) => clock_us.wrapping_sub(value),
                (_, value) => field.unwrap_or(0).wrapping_add(value),
            }),
        };
    }
    Ok(())
}

/// Encodes the index of the same row in the previous sample: 0 if the row is new, otherwise its
/// distance from `expected` (zigzag-encoded, plus 1). `expected` then becomes the next index, so
/// that the distance is 0 unless rows were inserted or removed.
pub(super) fn encode_row_index(out: &mut Vec<u8>, row_index: Option<usize>, expected: &mut usize) {
    match row_index {
        None => out.write_varint(0),
        Some(row_index) => {
            let distance = row_index.cast_signed().wrapping_sub(expected.cast_signed()) as i64;
            out.write_varint(zigzag(distance) + 1);
            *expected = row_index + 1;
        }
    }
}

/// Decodes the output of [`encode_row_index`] for `count` previous rows.
pub(super) fn decode_row_index(
    input: &mut ByteReader<'_>,
    count: usize,
    expected: &mut usize,
) -> Result<Option<usize>, CorruptFrame> {
    let Some(value) = input.varint()?.checked_sub(1) else { return Ok(None) };
    let row_index =
        i64::try_from(*expected).ok().and_then(|expected| expected.checked_add(unzigzag(value)));
    let row_index = row_index
        .and_then(|row_index| usize::try_from(row_index).ok())
        .filter(|row_index| *row_index < count);
    let row_index = row_index.ok_or(CorruptFrame::Reference)?;
    *expected = row_index + 1;
    Ok(Some(row_index))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn changed_fields_round_trip(
            before in proptest::collection::vec(any::<Option<i64>>(), 5),
            now in proptest::collection::vec(any::<Option<i64>>(), 5),
            clock in 0..32_u64,
            clock_us: i64,
        ) {
            let mut out = Vec::new();
            encode(&mut out, &now, &before, clock, clock_us);
            let mut fields = before;
            decode(&mut ByteReader::new(&out), &mut fields, clock, clock_us).unwrap();
            prop_assert_eq!(fields, now);
        }

        #[test]
        fn row_indexes_round_trip(row_indexes in proptest::collection::vec(proptest::option::of(0..50_usize), 0..30)) {
            let mut out = Vec::new();
            let mut expected = 0;
            row_indexes.iter().for_each(|row_index| encode_row_index(&mut out, *row_index, &mut expected));
            let mut input = ByteReader::new(&out);
            let mut expected = 0;
            for row_index in row_indexes {
                prop_assert_eq!(decode_row_index(&mut input, 50, &mut expected).unwrap(), row_index);
            }
        }
    }

    #[test]
    fn unchanged_row_takes_one_byte() {
        let mut out = Vec::new();
        encode(&mut out, &[Some(7), None], &[Some(7), None], 0, 0);
        assert_eq!(out, [0]);
    }
}
