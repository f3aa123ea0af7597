//! Keys of rows on cached pages. Block numbers change when a table is rewritten or copied, and keys
//! do not: wherever a row is now, the rows that were near it are usually near it again.

use howdah_codec::{ByteReader, ByteWriter as _};

use super::body_error::BodyError;

/// Keys of rows on cached pages of a table, at most [`RowKeys::ROWS_MAX`].
///
/// They are data of the table, in the text format of PostgreSQL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowKeys {
    /// Names of the columns of a unique key, in its order; 1 to [`RowKeys::COLUMNS_MAX`].
    pub columns: Vec<String>,
    /// The rows, one for each sampled page, by ascending block.
    pub rows: Vec<KeyedRow>,
}

/// The key of the first row that was alive on a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyedRow {
    /// Block number in the main fork, from 0.
    pub block: u32,
    /// Values of the key's columns as text, none of them NULL; together at most
    /// [`RowKeys::VALUE_BYTES_MAX`] bytes.
    pub values: Vec<String>,
}

impl RowKeys {
    /// Maximum number of rows for a table.
    pub const ROWS_MAX: usize = 4096;
    /// Maximum number of rows in an image.
    pub const IMAGE_ROWS_MAX: usize = 65_536;
    /// Maximum number of columns of a key, as many as an index can have.
    pub const COLUMNS_MAX: usize = 32;
    /// Maximum length of the values of one key, in bytes. Rows with longer keys are not recorded.
    pub const VALUE_BYTES_MAX: usize = 256;

    /// Encodes the columns, then the rows: blocks as differences, and values as texts.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.write_count(self.columns.len());
        self.columns.iter().for_each(|column| out.write_text(column));
        out.write_count(self.rows.len());
        let mut before = 0;
        for row in &self.rows {
            out.write_varint(u64::from(row.block.saturating_sub(before)));
            row.values.iter().for_each(|value| out.write_text(value));
            before = row.block;
        }
    }

    pub(super) fn read(reader: &mut ByteReader<'_>) -> Result<Option<Self>, BodyError> {
        let count = reader.count_up_to(Self::COLUMNS_MAX)?;
        if count == 0 {
            return Ok(None);
        }
        let text = |reader: &mut ByteReader<'_>| Ok::<_, BodyError>(reader.text()?.to_owned());
        let columns = (0..count).map(|_| text(reader)).collect::<Result<Vec<_>, _>>()?;
        let (mut rows, mut block) = (Vec::new(), 0_u32);
        for _ in 0..reader.count_up_to(Self::ROWS_MAX)? {
            block = block.checked_add(reader.narrow()?).ok_or(BodyError::NumberOutOfRange)?;
            let values = (0..count).map(|_| text(reader)).collect::<Result<Vec<_>, _>>()?;
            if values.iter().map(String::len).sum::<usize>() > Self::VALUE_BYTES_MAX {
                return Err(BodyError::NumberOutOfRange);
            }
            rows.push(KeyedRow { block, values });
        }
        Ok(Some(Self { columns, rows }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    proptest! {
        #[test]
        fn row_keys_round_trip(
            columns in vec(".{0,10}", 1..4),
            rows in vec((any::<u32>(), vec(".{0,15}", 4)), 0..50),
        ) {
            let mut rows: Vec<_> = rows
                .into_iter()
                .map(|(block, values)| KeyedRow {
                    block,
                    values: values.into_iter().take(columns.len()).collect(),
                })
                .collect();
            rows.sort_by_key(|row| row.block);
            let keys = RowKeys { columns, rows };
            let mut out = Vec::new();
            keys.write(&mut out);
            let mut reader = ByteReader::new(&out);
            prop_assert_eq!(RowKeys::read(&mut reader).unwrap(), Some(keys));
            prop_assert!(reader.is_empty());
        }
    }

    #[test]
    fn oversized_keys_are_rejected() {
        let read = |keys: &RowKeys| {
            let mut out = Vec::new();
            keys.write(&mut out);
            RowKeys::read(&mut ByteReader::new(&out))
        };
        let row = |length| KeyedRow { block: 1, values: vec!["x".repeat(length)] };
        let keys = |rows| RowKeys { columns: vec!["id".to_owned()], rows };
        assert!(read(&keys(vec![row(256)])).is_ok());
        assert!(matches!(read(&keys(vec![row(257)])), Err(BodyError::NumberOutOfRange)));
        let too_many = keys(vec![row(1); RowKeys::ROWS_MAX + 1]);
        assert!(matches!(read(&too_many), Err(BodyError::InconsistentCounts)));
        let columns = vec!["id".to_owned(); RowKeys::COLUMNS_MAX + 1];
        let too_wide = RowKeys { columns, rows: Vec::new() };
        assert!(matches!(read(&too_wide), Err(BodyError::InconsistentCounts)));
    }
}
