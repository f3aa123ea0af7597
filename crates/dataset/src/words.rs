//! [`Words`]: byte strings of a column, each once; and columns of them and of numbers, by row.
//!
//! Rows come one after another and most columns of most rows hold nothing. So a column is as long as its last
//! value needs, what lies behind that is null, and a column that nothing was put in costs nothing.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

/// A word of a [`Words`], counted from 1; 0 is null.
pub(crate) type Slot = u32;

/// A word and where it lies.
#[derive(Clone, Copy, Default)]
struct Recent {
    slot: Slot,
    from: usize,
    to: usize,
}

/// Room that is kept for the next file: what that of a usual file needs.
const KEPT: usize = 256 << 10;
const KEPT_BYTES: usize = 8 << 20;

/// Byte strings, each once; more often where hardly any repeat, as looking for them costs more than they do.
#[derive(Default)]
pub(crate) struct Words {
    bytes: Vec<u8>,
    /// Where each ends.
    ends: Vec<usize>,
    /// Slots by what they hold, with a hash that nobody can foresee: clients choose the words.
    table: HashTable<Slot>,
    hasher: DefaultHashBuilder,
    /// The two words that were looked for before this one: mostly it is one of them.
    recent: [Recent; 2],
    /// How many words were new, less eight for each that was not.
    news: u32,
    /// Of so many words to come it is not asked whether they are here.
    unasked: u32,
    /// From here on a word may be here twice; 0 if none is.
    first_unasked: Slot,
}

/// Where so many words are new, such as numbers at random, the next ones are not looked for. Then it is tried
/// anew.
const NEWS_MAX: u32 = 2048;
const UNASKED: u32 = 4 * NEWS_MAX;

impl Words {
    /// The slot of a word, if it is here.
    #[inline]
    pub(crate) fn find(&mut self, word: &[u8]) -> Option<Slot> {
        if self.is(self.recent[0], word) {
            return Some(self.recent[0].slot);
        }
        self.look(word)
    }

    fn look(&mut self, word: &[u8]) -> Option<Slot> {
        let before = self.recent[1];
        if self.is(before, word) {
            self.recent = [before, self.recent[0]];
            return Some(before.slot);
        }
        if self.unasked > 0 {
            return None;
        }
        let hash = self.hasher.hash_one(word);
        let slot = *self.table.find(hash, |slot| self.word(*slot) == word)?;
        self.set_recent(slot);
        self.news = self.news.saturating_sub(8);
        Some(slot)
    }

    #[inline]
    fn is(&self, recent: Recent, word: &[u8]) -> bool {
        recent.slot != 0
            && recent.to - recent.from == word.len()
            && self.bytes.get(recent.from..recent.to) == Some(word)
    }

    fn set_recent(&mut self, slot: Slot) {
        let (from, to) = range_of(&self.ends, slot);
        self.recent = [Recent { slot, from, to }, self.recent[0]];
    }

    /// The slot of a word, which is put here if need be.
    #[inline]
    pub(crate) fn slot(&mut self, word: &[u8]) -> Slot {
        match self.find(word) {
            Some(slot) => slot,
            None => self.insert(word),
        }
    }

    /// Puts a word here that is not here yet.
    pub(crate) fn insert(&mut self, word: &[u8]) -> Slot {
        self.bytes.extend_from_slice(word);
        self.ends.push(self.bytes.len());
        let slot = Slot::try_from(self.ends.len()).expect("there are fewer rows than that");
        if self.unasked > 0 {
            self.unasked -= 1;
            if self.first_unasked == 0 {
                self.first_unasked = slot;
            }
        } else {
            let (bytes, ends, hasher) = (&self.bytes, &self.ends, &self.hasher);
            let hash_of = |slot: &Slot| hasher.hash_one(word_of(bytes, ends, *slot));
            self.table.insert_unique(hasher.hash_one(word), slot, hash_of);
            self.news += 1;
            if self.news == NEWS_MAX {
                (self.news, self.unasked) = (NEWS_MAX / 2, UNASKED);
            }
        }
        self.set_recent(slot);
        slot
    }

    /// A word.
    #[inline]
    pub(crate) fn word(&self, slot: Slot) -> &[u8] {
        word_of(&self.bytes, &self.ends, slot)
    }

    /// Whether another slot may hold the same word.
    pub(crate) fn may_repeat(&self, slot: Slot) -> bool {
        self.first_unasked != 0 && slot >= self.first_unasked
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES);
        self.ends.clear();
        self.ends.shrink_to(KEPT);
        self.table.clear();
        if self.table.capacity() > 2 * KEPT {
            self.table = HashTable::new();
        }
        self.recent = [Recent::default(); 2];
        self.first_unasked = 0;
    }
}

#[inline]
fn word_of<'a>(bytes: &'a [u8], ends: &[usize], slot: Slot) -> &'a [u8] {
    let (from, to) = range_of(ends, slot);
    bytes.get(from..to).unwrap_or_default()
}

#[inline]
fn range_of(ends: &[usize], slot: Slot) -> (usize, usize) {
    let end = |index: usize| ends.get(index).copied().unwrap_or(0);
    match slot as usize {
        0 => (0, 0),
        1 => (0, end(0)),
        number => (end(number - 2), end(number - 1)),
    }
}

/// A column of numbers.
#[derive(Default)]
pub(crate) struct Numbers {
    /// 0 where there is none.
    numbers: Vec<i64>,
    /// Whether there is one.
    known: Vec<bool>,
    nulls: usize,
}

/// A column of counts or microseconds. A value beyond `i64` is stored as the largest one: signed
/// numbers are what the tools that read these files subtract without surprises, and 292 thousand
/// years are enough.
pub(crate) fn amount(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl Numbers {
    /// Puts a row's number behind those of the rows before it.
    #[inline]
    pub(crate) fn set(&mut self, row: u32, number: i64) {
        self.nulls += (row as usize).saturating_sub(self.numbers.len());
        skip_to(&mut self.numbers, row);
        skip_to(&mut self.known, row);
        self.numbers.push(number);
        self.known.push(true);
    }

    #[inline]
    pub(crate) fn at(&self, row: u32) -> Option<i64> {
        let is_known = self.known.get(row as usize).copied().unwrap_or(false);
        is_known.then(|| self.number(row))
    }

    /// The number of a row that has one.
    #[inline]
    pub(crate) fn number(&self, row: u32) -> i64 {
        self.numbers.get(row as usize).copied().unwrap_or(0)
    }

    /// Whether all of so many rows have one.
    pub(crate) fn is_whole(&self, rows: usize) -> bool {
        self.nulls == 0 && self.numbers.len() == rows
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.numbers.clear();
        self.known.clear();
        self.nulls = 0;
    }
}

/// A column of byte strings.
#[derive(Default)]
pub(crate) struct WordColumn {
    pub(crate) words: Words,
    slots: Vec<Slot>,
}

impl WordColumn {
    /// Puts a row's word behind those of the rows before it.
    #[inline]
    pub(crate) fn set(&mut self, row: u32, word: &[u8]) {
        let slot = self.words.slot(word);
        self.set_slot(row, slot);
    }

    #[inline]
    fn set_slot(&mut self, row: u32, slot: Slot) {
        skip_to(&mut self.slots, row);
        self.slots.push(slot);
    }

    #[inline]
    pub(crate) fn at(&self, row: u32) -> Slot {
        self.slots.get(row as usize).copied().unwrap_or(0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.words.clear();
        self.slots.clear();
    }
}

/// The two columns of a text: readable, and exact where that differs.
#[derive(Default)]
pub(crate) struct TextColumn {
    pub(crate) readable: WordColumn,
    pub(crate) exact: WordColumn,
}

impl TextColumn {
    #[inline]
    pub(crate) fn set(&mut self, row: u32, text: &[u8]) {
        let (slot, is_exact) = readable(&mut self.readable.words, text);
        self.readable.set_slot(row, slot);
        if !is_exact {
            self.exact.set(row, text);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.readable.clear();
        self.exact.clear();
    }
}

/// The slot of a text among words that are all UTF-8, and whether it is that.
#[inline]
pub(crate) fn readable(words: &mut Words, text: &[u8]) -> (Slot, bool) {
    if let Some(slot) = words.find(text) {
        return (slot, true);
    }
    match std::str::from_utf8(text) {
        Ok(_) => (words.insert(text), true),
        Err(_) => (words.slot(String::from_utf8_lossy(text).as_bytes()), false),
    }
}

/// A column of lists.
pub(crate) struct Lists<T> {
    /// A row's list, counted from 1; 0 is null.
    lists: Vec<u32>,
    entries: Vec<T>,
    /// Where each list ends among the entries.
    ends: Vec<usize>,
}

impl<T> Default for Lists<T> {
    fn default() -> Self {
        Self { lists: Vec::new(), entries: Vec::new(), ends: Vec::new() }
    }
}

impl<T: Copy + PartialEq> Lists<T> {
    /// Puts a row's list behind those of the rows before it.
    pub(crate) fn set(&mut self, row: u32, entries: impl Iterator<Item = T>) {
        let from = self.entries.len();
        self.entries.extend(entries);
        // The same types and formats come again and again.
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
        self.entries.shrink_to(KEPT);
        self.ends.clear();
    }
}

/// A column of lists of byte strings, of which some may be null.
#[derive(Default)]
pub(crate) struct WordLists {
    pub(crate) words: Words,
    pub(crate) lists: Lists<Slot>,
}

impl WordLists {
    pub(crate) fn set<'a>(&mut self, row: u32, list: impl Iterator<Item = Option<&'a [u8]>>) {
        let words = &mut self.words;
        self.lists.set(row, list.map(|word| word.map_or(0, |word| words.slot(word))));
    }

    pub(crate) fn clear(&mut self) {
        self.words.clear();
        self.lists.clear();
    }
}

/// Nothing is known of the rows before this one that have no value yet.
#[inline]
fn skip_to<T: Clone + Default>(column: &mut Vec<T>, row: u32) {
    if column.len() < row as usize {
        column.resize(row as usize, T::default());
    }
}

#[test]
fn words_are_here_once_unless_hardly_any_repeats() {
    let mut words = Words::default();
    let slots: Vec<Slot> =
        (0..3000_u32).map(|number| words.slot((number % 500).to_string().as_bytes())).collect();
    assert!(slots.iter().zip(0..).all(|(slot, number)| *slot == number % 500 + 1));
    assert_eq!((words.len(), words.word(500)), (500, &b"499"[..]));
    for number in 0..40_000_u32 {
        let word = format!("new {number}");
        let slot = words.slot(word.as_bytes());
        assert_eq!(words.word(slot), word.as_bytes());
    }
    assert_eq!(words.len(), 40_500);
    assert!(words.may_repeat(40_500) && !words.may_repeat(500));
    words.clear();
    // What repeats again is found again, after a while.
    let slots: Vec<Slot> = (0..40_000).map(|_| words.slot(b"a").max(words.slot(b"b"))).collect();
    assert!(slots.iter().rev().take(1000).all(|slot| *slot == slots[39_999]));
    assert!(slots.iter().all(|slot| matches!(words.word(*slot), b"a" | b"b")));
}

#[test]
fn columns_are_null_where_nothing_was_put() {
    let mut numbers = Numbers::default();
    let mut texts = TextColumn::default();
    let mut lists = Lists::default();
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
    assert!(!numbers.is_whole(5));
    numbers.clear();
    numbers.set(0, 1);
    assert!(numbers.is_whole(1));
}
