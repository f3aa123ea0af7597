//! Finds a live row on a copy of a heap page, and the bytes of its columns, without a session.
//!
//! A row counts as live if its hint bits say so: its inserter has committed, and it was not
//! deleted. Rows without hint bits are skipped, so a row that is live may be missed, but what is
//! found was alive when its hint bits were set.
//!
//! Sources: `bufpage.h`, `itemid.h`, `htup_details.h`, `varatt.h` (`postgres.h` before 16) and
//! `tupmacs.h`, identical in 14 to 18 on little-endian machines. The copy may have been taken in
//! the middle of a change, so every offset is checked.

/// How the values of a column are stored, from `pg_attribute`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AttributeLayout {
    /// `attlen`: bytes of a value, -1 for those with a length word, -2 for C strings.
    pub(super) length: i16,
    /// Bytes to which a value is aligned, from `attalign`: 1, 2, 4 or 8.
    pub(super) alignment: usize,
}

/// Maximum size of a page: `BLCKSZ` is at most 32 kB.
const PAGE_BYTES_MAX: usize = 1 << 15;
/// Length of a page header, before the line pointers.
const HEADER_BYTES: usize = 24;
/// Offset of `pd_lower`, the end of the line pointers, in the page header.
const LOWER: usize = 12;
const LINE_POINTER_BYTES: usize = 4;
const LP_NORMAL: u32 = 1;
/// Length of a tuple header, before the null bitmap.
const TUPLE_HEADER_BYTES: usize = 23;
const HEAP_NATTS_MASK: u16 = 0x07ff;
const HEAP_HASNULL: u16 = 0x0001;
const HEAP_XMAX_LOCK_ONLY: u16 = 0x0080;
const HEAP_XMIN_COMMITTED: u16 = 0x0100;
const HEAP_XMAX_INVALID: u16 = 0x0800;

/// Returns the values of the columns `attributes` (numbers from 1) of the first live row of `page`,
/// of which all are stored in the row itself, uncompressed, and not NULL. `layout` describes the
/// columns up to the last of them.
pub(super) fn first_live_row<'p>(
    page: &'p [u8],
    layout: &[AttributeLayout],
    attributes: &[usize],
) -> Option<Vec<&'p [u8]>> {
    let lower = usize::from(u16_at(page, LOWER)?);
    let end = lower.min(page.len()).min(PAGE_BYTES_MAX);
    let pointers = page.get(HEADER_BYTES..end)?.chunks_exact(LINE_POINTER_BYTES);
    pointers
        .filter_map(|pointer| {
            let pointer = u32::from_le_bytes(pointer.try_into().ok()?);
            let (offset, length) = (pointer & 0x7fff, pointer >> 17);
            ((pointer >> 15) & 3 == LP_NORMAL).then_some(())?;
            page.get(offset as usize..)?.get(..length as usize)
        })
        .filter(|tuple| is_live(tuple).unwrap_or(false))
        .find_map(|tuple| values(tuple, layout, attributes))
}

fn is_live(tuple: &[u8]) -> Option<bool> {
    let mask = u16_at(tuple, 20)?;
    let xmax = u32::from_le_bytes(tuple.get(4..8)?.try_into().ok()?);
    // A frozen row has both bits of xmin, and so the one for its commit.
    let is_inserted = mask & HEAP_XMIN_COMMITTED != 0;
    let is_deleted = xmax != 0 && mask & (HEAP_XMAX_INVALID | HEAP_XMAX_LOCK_ONLY) == 0;
    Some(is_inserted && !is_deleted)
}

fn values<'p>(
    tuple: &'p [u8],
    layout: &[AttributeLayout],
    attributes: &[usize],
) -> Option<Vec<&'p [u8]>> {
    let count = usize::from(u16_at(tuple, 18)? & HEAP_NATTS_MASK);
    let has_nulls = u16_at(tuple, 20)? & HEAP_HASNULL != 0;
    let data = tuple.get(usize::from(*tuple.get(22)?)..)?;
    let mut found = vec![None; attributes.len()];
    let mut offset = 0;
    for (index, column) in layout.iter().enumerate().take(count) {
        if has_nulls {
            let bits = tuple.get(TUPLE_HEADER_BYTES + index / 8)?;
            if bits >> (index % 8) & 1 == 0 {
                continue;
            }
        }
        let value = StoredValue::at(data, offset, *column)?;
        offset = value.end;
        for (place, _) in attributes.iter().enumerate().filter(|(_, at)| **at == index + 1) {
            found[place] = value.bytes;
        }
    }
    found.into_iter().collect()
}

/// A value in the data of a row.
struct StoredValue<'p> {
    /// The value without its length word; `None` if it is compressed or stored elsewhere.
    bytes: Option<&'p [u8]>,
    /// Offset of the first byte after the value.
    end: usize,
}

impl<'p> StoredValue<'p> {
    fn at(data: &'p [u8], offset: usize, column: AttributeLayout) -> Option<Self> {
        let aligned = offset.checked_next_multiple_of(column.alignment.max(1))?;
        match column.length {
            -2 => {
                let text = data.get(aligned..)?;
                let length = text.iter().position(|&byte| byte == 0)?;
                Some(Self { bytes: text.get(..length), end: aligned + length + 1 })
            }
            // A short length word is not aligned, and padding is zero.
            -1 if *data.get(offset)? != 0 => Self::with_length(data, offset),
            -1 => Self::with_length(data, aligned),
            length => {
                let end = aligned.checked_add(usize::try_from(length).ok()?)?;
                Some(Self { bytes: Some(data.get(aligned..end)?), end })
            }
        }
    }

    fn with_length(data: &'p [u8], at: usize) -> Option<Self> {
        const EXTERNAL: u8 = 0x01;
        /// Length of a pointer to a TOAST table: header, tag and `varatt_external`.
        const TOAST_POINTER_BYTES: usize = 18;
        let first = *data.get(at)?;
        if first == EXTERNAL {
            return Some(Self { bytes: None, end: at + TOAST_POINTER_BYTES });
        }
        if first & 1 == 1 {
            let end = at + usize::from(first >> 1);
            return Some(Self { bytes: Some(data.get(at + 1..end)?), end });
        }
        let word = u32::from_le_bytes(data.get(at..at + 4)?.try_into().ok()?);
        let end = at.checked_add(usize::try_from(word >> 2).ok()?)?;
        let bytes = data.get(at + 4..end)?;
        Some(Self { bytes: (word & 3 == 0).then_some(bytes), end })
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    const INT4: AttributeLayout = AttributeLayout { length: 4, alignment: 4 };
    const TEXT: AttributeLayout = AttributeLayout { length: -1, alignment: 4 };

    fn tuple(xmax: u32, mask: u16, bits: Option<u8>, count: u16, data: &[u8]) -> Vec<u8> {
        let mut tuple = vec![0; TUPLE_HEADER_BYTES];
        tuple[4..8].copy_from_slice(&xmax.to_le_bytes());
        tuple[18..20].copy_from_slice(&count.to_le_bytes());
        let mask = mask | if bits.is_some() { HEAP_HASNULL } else { 0 };
        tuple[20..22].copy_from_slice(&mask.to_le_bytes());
        tuple[22] = 24;
        tuple.push(bits.unwrap_or(0));
        tuple.extend(data);
        tuple
    }

    fn page(tuples: &[Vec<u8>]) -> Vec<u8> {
        let mut page = vec![0; 8192];
        let lower = HEADER_BYTES + tuples.len() * LINE_POINTER_BYTES;
        page[LOWER..LOWER + 2].copy_from_slice(&(lower as u16).to_le_bytes());
        let mut end = 8192;
        for (index, tuple) in tuples.iter().enumerate() {
            end = (end - tuple.len()) & !7;
            page[end..end + tuple.len()].copy_from_slice(tuple);
            let pointer = end as u32 | LP_NORMAL << 15 | (tuple.len() as u32) << 17;
            let at = HEADER_BYTES + index * LINE_POINTER_BYTES;
            page[at..at + 4].copy_from_slice(&pointer.to_le_bytes());
        }
        page
    }

    #[test]
    fn first_live_row_is_found() {
        let row = |xmax, mask, id: i32| tuple(xmax, mask, None, 1, &id.to_le_bytes());
        let page = page(&[
            row(0, 0, 1),
            row(9, HEAP_XMIN_COMMITTED, 2),
            row(9, HEAP_XMIN_COMMITTED | HEAP_XMAX_LOCK_ONLY, 3),
            row(0, HEAP_XMIN_COMMITTED | HEAP_XMAX_INVALID, 4),
        ]);
        let found = first_live_row(&page, &[INT4], &[1]).unwrap();
        assert_eq!(found, [3_i32.to_le_bytes()]);
    }

    #[test]
    fn values_follow_nulls_padding_and_length_words() {
        // (NULL, 'ab' with a short length word, int after padding, text with a long length word).
        let data =
            [&[7, b'a', b'b', 0], &5_i32.to_le_bytes()[..], &[28, 0, 0, 0, b'x', b'y', b'z']];
        let live = HEAP_XMIN_COMMITTED | HEAP_XMAX_INVALID;
        let row = tuple(0, live, Some(0b1110), 4, &data.concat());
        let page = page(&[row]);
        let layout = [INT4, TEXT, INT4, TEXT];
        let found = first_live_row(&page, &layout, &[4, 2, 3]).unwrap();
        assert_eq!(found, [&b"xyz"[..], b"ab", &5_i32.to_le_bytes()]);
        assert_eq!(first_live_row(&page, &layout, &[1]), None, "it is NULL");
        assert_eq!(first_live_row(&page, &layout, &[5]), None, "the row is older than the column");
    }

    #[test]
    fn values_in_a_toast_table_or_compressed_are_skipped() {
        let live = HEAP_XMIN_COMMITTED | HEAP_XMAX_INVALID;
        let mut toasted = vec![1, 18];
        toasted.resize(20, 0);
        toasted.extend(5_i32.to_le_bytes());
        let compressed = [&[30, 0, 0, 0, 1, 2, 3, 0], &6_i32.to_le_bytes()[..]].concat();
        let rows = [toasted, compressed].map(|data| tuple(0, live, None, 2, &data));
        let page = page(&rows);
        let found = first_live_row(&page, &[TEXT, INT4], &[2]).unwrap();
        assert_eq!(found, [5_i32.to_le_bytes()]);
        assert_eq!(first_live_row(&page, &[TEXT, INT4], &[1]), None);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_no_danger(mut bytes in vec(any::<u8>(), 0..4000), seed: u16) {
            if bytes.len() > LOWER + 2 {
                let lower = seed % 4000;
                bytes[LOWER..LOWER + 2].copy_from_slice(&lower.to_le_bytes());
            }
            let _ = first_live_row(&bytes, &[TEXT, INT4, TEXT], &[1, 3]);
        }
    }
}
