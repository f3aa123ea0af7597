//! [`StringDictionary`]: the distinct byte strings of a column, and columns of such strings or of
//! numbers.
//!
//! Rows are appended one after another, and most columns are empty in most rows. A column is
//! therefore only as long as its last value requires: rows after that are null, and a column
//! without values costs nothing.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

/// The index of an entry of a [`StringDictionary`], from 1; 0 is null.
pub(crate) type DictionaryIndex = u32;

/// An entry and its byte range.
#[derive(Clone, Copy, Default)]
struct RecentEntry {
    index: DictionaryIndex,
    from: usize,
    to: usize,
}

/// Number of entries for which capacity is retained for the next file; sufficient for a typical
/// file.
const RETAINED_ENTRIES: usize = 256 << 10;
const RETAINED_BYTES: usize = 8 << 20;

/// Distinct byte strings. While strings hardly repeat there may be duplicates, because searching
/// for them would cost more than storing them twice.
#[derive(Default)]
pub(crate) struct StringDictionary {
    bytes: Vec<u8>,
    /// End offset of each string in `bytes`.
    ends: Vec<usize>,
    /// Indexes by content. The hash is unpredictable, because clients choose the strings.
    table: HashTable<DictionaryIndex>,
    hasher: DefaultHashBuilder,
    /// The two most recent results, because a repeated string is usually one of them.
    recent: [RecentEntry; 2],
    /// Number of strings that a search of `table` did not find, minus eight for each that it found;
    /// at least 0. Halved when it reaches [`NEW_STREAK_MAX`].
    new_streak: u32,
    /// Number of further strings to insert without a search.
    unchecked_left: u32,
    /// First index that may be a duplicate; 0 if none may.
    first_unchecked: DictionaryIndex,
}

/// Number of new strings, such as random numbers, after which the next [`UNCHECKED_INSERTS`] are
/// inserted without a search. Then searching resumes.
const NEW_STREAK_MAX: u32 = 2048;
const UNCHECKED_INSERTS: u32 = 4 * NEW_STREAK_MAX;

impl StringDictionary {
    /// Returns the index of a string, if it is in the dictionary. While searches are suspended,
    /// only the two most recent strings are found.
    #[inline]
    pub(crate) fn find(&mut self, string: &[u8]) -> Option<DictionaryIndex> {
        if self.matches(self.recent[0], string) {
            return Some(self.recent[0].index);
        }
        self.find_slow(string)
    }

    fn find_slow(&mut self, string: &[u8]) -> Option<DictionaryIndex> {
        let before = self.recent[1];
        if self.matches(before, string) {
            self.recent = [before, self.recent[0]];
            return Some(before.index);
        }
        if self.unchecked_left > 0 {
            return None;
        }
        let hash = self.hasher.hash_one(string);
        let slot = *self.table.find(hash, |slot| self.get(*slot) == string)?;
        self.set_recent(slot);
        self.new_streak = self.new_streak.saturating_sub(8);
        Some(slot)
    }

    #[inline]
    fn matches(&self, recent: RecentEntry, string: &[u8]) -> bool {
        recent.index != 0
            && recent.to - recent.from == string.len()
            && self.bytes.get(recent.from..recent.to) == Some(string)
    }

    fn set_recent(&mut self, slot: DictionaryIndex) {
        let (from, to) = entry_range(&self.ends, slot);
        self.recent = [RecentEntry { index: slot, from, to }, self.recent[0]];
    }

    /// Returns the index of a string, which is inserted if [`Self::find`] does not find it.
    #[inline]
    pub(crate) fn get_or_insert(&mut self, string: &[u8]) -> DictionaryIndex {
        match self.find(string) {
            Some(slot) => slot,
            None => self.insert(string),
        }
    }

    /// Inserts a string that [`Self::find`] did not find.
    pub(crate) fn insert(&mut self, string: &[u8]) -> DictionaryIndex {
        self.bytes.extend_from_slice(string);
        self.ends.push(self.bytes.len());
        let slot =
            DictionaryIndex::try_from(self.ends.len()).expect("there are fewer rows than that");
        if self.unchecked_left > 0 {
            self.unchecked_left -= 1;
            if self.first_unchecked == 0 {
                self.first_unchecked = slot;
            }
        } else {
            let (bytes, ends, hasher) = (&self.bytes, &self.ends, &self.hasher);
            let hash_of = |slot: &DictionaryIndex| hasher.hash_one(entry_bytes(bytes, ends, *slot));
            self.table.insert_unique(hasher.hash_one(string), slot, hash_of);
            self.new_streak += 1;
            if self.new_streak == NEW_STREAK_MAX {
                (self.new_streak, self.unchecked_left) = (NEW_STREAK_MAX / 2, UNCHECKED_INSERTS);
            }
        }
        self.set_recent(slot);
        slot
    }

    /// Returns the string at an index; for 0 (null), the empty string.
    #[inline]
    pub(crate) fn get(&self, slot: DictionaryIndex) -> &[u8] {
        entry_bytes(&self.bytes, &self.ends, slot)
    }

    /// Whether a lower index may have the same string.
    pub(crate) fn may_be_duplicate(&self, slot: DictionaryIndex) -> bool {
        self.first_unchecked != 0 && slot >= self.first_unchecked
    }

    /// Returns the number of strings.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(RETAINED_BYTES);
        self.ends.clear();
        self.ends.shrink_to(RETAINED_ENTRIES);
        self.table.clear();
        if self.table.capacity() > 2 * RETAINED_ENTRIES {
            self.table = HashTable::new();
        }
        self.recent = [RecentEntry::default(); 2];
        self.first_unchecked = 0;
    }
}

#[inline]
fn entry_bytes<'a>(bytes: &'a [u8], ends: &[usize], slot: DictionaryIndex) -> &'a [u8] {
    let (from, to) = entry_range(ends, slot);
    bytes.get(from..to).unwrap_or_default()
}

#[inline]
fn entry_range(ends: &[usize], slot: DictionaryIndex) -> (usize, usize) {
    let end = |index: usize| ends.get(index).copied().unwrap_or(0);
    match slot as usize {
        0 => (0, 0),
        1 => (0, end(0)),
        number => (end(number - 2), end(number - 1)),
    }
}

#[derive(Default)]
pub(crate) struct Int64Column {
    /// The number of each row; 0 where the value is null.
    numbers: Vec<i64>,
    /// Whether each row has a value.
    is_present: Vec<bool>,
    nulls: usize,
}

/// Converts a count or a number of microseconds to `i64`. Values above `i64::MAX` (292 thousand
/// years in microseconds) become `i64::MAX`. Columns are signed, because many tools cannot subtract
/// unsigned numbers.
pub(crate) fn saturate_to_i64(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl Int64Column {
    /// Sets a row's number. Rows must be set in ascending order.
    #[inline]
    pub(crate) fn set(&mut self, row: u32, number: i64) {
        self.nulls += (row as usize).saturating_sub(self.numbers.len());
        skip_to(&mut self.numbers, row);
        skip_to(&mut self.is_present, row);
        self.numbers.push(number);
        self.is_present.push(true);
    }

    #[inline]
    pub(crate) fn at(&self, row: u32) -> Option<i64> {
        let is_known = self.is_present.get(row as usize).copied().unwrap_or(false);
        is_known.then(|| self.number(row))
    }

    /// Returns the number of a row that has one.
    #[inline]
    pub(crate) fn number(&self, row: u32) -> i64 {
        self.numbers.get(row as usize).copied().unwrap_or(0)
    }

    /// Whether the column has `rows` rows, and a number in each.
    pub(crate) fn has_no_nulls(&self, rows: usize) -> bool {
        self.nulls == 0 && self.numbers.len() == rows
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.numbers.clear();
        self.is_present.clear();
        self.nulls = 0;
    }
}

/// A column of byte strings.
#[derive(Default)]
pub(crate) struct DictionaryColumn {
    pub(crate) dictionary: StringDictionary,
    indexes: Vec<DictionaryIndex>,
}

impl DictionaryColumn {
    /// Sets a row's string. Rows must be set in ascending order.
    #[inline]
    pub(crate) fn set(&mut self, row: u32, string: &[u8]) {
        let slot = self.dictionary.get_or_insert(string);
        self.set_index(row, slot);
    }

    #[inline]
    fn set_index(&mut self, row: u32, slot: DictionaryIndex) {
        skip_to(&mut self.indexes, row);
        self.indexes.push(slot);
    }

    #[inline]
    pub(crate) fn at(&self, row: u32) -> DictionaryIndex {
        self.indexes.get(row as usize).copied().unwrap_or(0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.indexes.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.dictionary.clear();
        self.indexes.clear();
    }
}

/// The two columns of a text: readable UTF-8, and the exact bytes where these differ.
#[derive(Default)]
pub(crate) struct TextColumn {
    pub(crate) readable: DictionaryColumn,
    pub(crate) exact: DictionaryColumn,
}

impl TextColumn {
    #[inline]
    pub(crate) fn set(&mut self, row: u32, text: &[u8]) {
        let (slot, is_exact) = insert_readable(&mut self.readable.dictionary, text);
        self.readable.set_index(row, slot);
        if !is_exact {
            self.exact.set(row, text);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.readable.clear();
        self.exact.clear();
    }
}

/// Returns the index of a text in a dictionary of UTF-8 strings, and whether the text is valid
/// UTF-8. If it is not, it is inserted with replacement characters.
#[inline]
pub(crate) fn insert_readable(
    words: &mut StringDictionary,
    text: &[u8],
) -> (DictionaryIndex, bool) {
    if let Some(slot) = words.find(text) {
        return (slot, true);
    }
    match std::str::from_utf8(text) {
        Ok(_) => (words.insert(text), true),
        Err(_) => (words.get_or_insert(String::from_utf8_lossy(text).as_bytes()), false),
    }
}

/// A column of lists, in which equal consecutive lists are stored once.
pub(crate) struct ListColumn<T> {
    /// Number of each row's list, from 1; 0 is null.
    lists: Vec<u32>,
    entries: Vec<T>,
    /// End offset of each list in `entries`.
    ends: Vec<usize>,
}

impl<T> Default for ListColumn<T> {
    fn default() -> Self {
        Self { lists: Vec::new(), entries: Vec::new(), ends: Vec::new() }
    }
}

impl<T: Copy + PartialEq> ListColumn<T> {
    /// Sets a row's list. Rows must be set in ascending order.
    pub(crate) fn set(&mut self, row: u32, entries: impl Iterator<Item = T>) {
        let from = self.entries.len();
        self.entries.extend(entries);
        // Consecutive rows often have the same types and formats.
        let last = self.ends.len().checked_sub(1).and_then(|last| self.list(last));
        if last.is_some_and(|last| last == &self.entries[from..]) {
            self.entries.truncate(from);
        } else {
            self.ends.push(self.entries.len());
        }
        skip_to(&mut self.lists, row);
        self.lists.push(self.ends.len() as u32);
    }

    #[inline]
    pub(crate) fn at(&self, row: u32) -> Option<&[T]> {
        let list = self.lists.get(row as usize)?;
        self.list((*list as usize).checked_sub(1)?)
    }

    fn list(&self, index: usize) -> Option<&[T]> {
        let from = match index {
            0 => 0,
            _ => *self.ends.get(index - 1)?,
        };
        self.entries.get(from..*self.ends.get(index)?)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.lists.clear();
        self.entries.clear();
        self.entries.shrink_to(RETAINED_ENTRIES);
        self.ends.clear();
    }
}

/// A column of lists of byte strings, which may contain nulls.
#[derive(Default)]
pub(crate) struct DictionaryListColumn {
    pub(crate) dictionary: StringDictionary,
    pub(crate) lists: ListColumn<DictionaryIndex>,
}

impl DictionaryListColumn {
    pub(crate) fn set<'a>(&mut self, row: u32, list: impl Iterator<Item = Option<&'a [u8]>>) {
        let words = &mut self.dictionary;
        self.lists
            .set(row, list.map(|string| string.map_or(0, |string| words.get_or_insert(string))));
    }

    pub(crate) fn clear(&mut self) {
        self.dictionary.clear();
        self.lists.clear();
    }
}

/// Adds nulls for the rows before this one that have no value.
#[inline]
fn skip_to<T: Clone + Default>(column: &mut Vec<T>, row: u32) {
    if column.len() < row as usize {
        column.resize(row as usize, T::default());
    }
}

#[test]
fn strings_are_unique_unless_few_repeat() {
    let mut words = StringDictionary::default();
    let slots: Vec<DictionaryIndex> = (0..3000_u32)
        .map(|number| words.get_or_insert((number % 500).to_string().as_bytes()))
        .collect();
    assert!(slots.iter().zip(0..).all(|(slot, number)| *slot == number % 500 + 1));
    assert_eq!((words.len(), words.get(500)), (500, &b"499"[..]));
    for number in 0..40_000_u32 {
        let string = format!("new {number}");
        let slot = words.get_or_insert(string.as_bytes());
        assert_eq!(words.get(slot), string.as_bytes());
    }
    assert_eq!(words.len(), 40_500);
    assert!(words.may_be_duplicate(40_500) && !words.may_be_duplicate(500));
    words.clear();
    // After a number of unchecked inserts, repeated strings are found again.
    let slots: Vec<DictionaryIndex> =
        (0..40_000).map(|_| words.get_or_insert(b"a").max(words.get_or_insert(b"b"))).collect();
    assert!(slots.iter().rev().take(1000).all(|slot| *slot == slots[39_999]));
    assert!(slots.iter().all(|slot| matches!(words.get(*slot), b"a" | b"b")));
}

#[test]
fn unset_rows_are_null() {
    let mut numbers = Int64Column::default();
    let mut texts = TextColumn::default();
    let mut lists = ListColumn::default();
    assert!(numbers.is_empty() && numbers.at(0).is_none() && lists.at(0).is_none());
    for row in [0, 1, 4] {
        numbers.set(row, -7);
        texts.set(row, if row == 1 { b"\xff" } else { b"a" });
        lists.set(row, [row].into_iter().filter(|row| *row > 0));
    }
    let all = |at: &dyn Fn(u32) -> bool| (0..6).filter(|row| at(*row)).collect::<Vec<_>>();
    assert_eq!(all(&|row| numbers.at(row) == Some(-7)), [0, 1, 4]);
    assert_eq!(all(&|row| texts.readable.at(row) != 0), [0, 1, 4]);
    assert_eq!(all(&|row| texts.exact.at(row) != 0), [1]);
    assert_eq!((lists.at(0), lists.at(1), lists.at(2)), (Some(&[][..]), Some(&[1][..]), None));
    assert!(!numbers.has_no_nulls(5));
    numbers.clear();
    numbers.set(0, 1);
    assert!(numbers.has_no_nulls(1));
}
