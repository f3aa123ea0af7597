//! Texts of steps that were taken apart before.
//!
//! `S_1: select …` comes again and again, in every session of a driver. Where its name ends depends on
//! nothing but the text, unless a session has names of a strange kind. So the last ones are kept with what they
//! were found to be, and one comparison stands for taking them apart and hashing the statement.

use howdah_traffic::Hashed;

use crate::names::{simple_name, unnamed};

/// The texts met last, for all sessions.
#[derive(Debug, Default)]
pub(crate) struct Splits {
    places: Vec<Entry>,
}

#[derive(Clone, Debug, Default)]
struct Entry {
    /// Empty if there is none.
    text: Vec<u8>,
    /// Where its statement begins, and the hash of that.
    sql: usize,
    hash: u64,
}

/// Drivers prepare some hundreds of statements.
const PLACES: usize = 512;

/// Longer texts are not kept: at most a megabyte is.
const TEXT_BYTES_MAX: usize = 2048;

impl Splits {
    /// The name and the statement of a text that has no portal and can be read in one way only; the name is
    /// empty for the unnamed statement.
    #[inline]
    pub(crate) fn of<'a>(&mut self, text: &'a [u8]) -> Option<(&'a [u8], Hashed<'a>)> {
        let place = place(text)?;
        if let Some(entry) = self.places.get(place)
            && entry.text == text
        {
            let (name, sql) = (&text[..entry.sql - 2], &text[entry.sql..]);
            return Some((unnamed(name), Hashed::with_hash(sql, entry.hash)));
        }
        self.keep(place, text)
    }

    /// The same for a text that was not met.
    #[inline(never)]
    fn keep<'a>(&mut self, place: usize, text: &'a [u8]) -> Option<(&'a [u8], Hashed<'a>)> {
        let name = simple_name(text)?;
        let sql = Hashed::new(text.get(name + 2..)?);
        if text.len() <= TEXT_BYTES_MAX {
            self.places.resize(PLACES, Entry::default());
            let entry = &mut self.places[place];
            entry.text.clear();
            entry.text.extend_from_slice(text);
            (entry.sql, entry.hash) = (name + 2, sql.hash());
        }
        Some((unnamed(&text[..name]), sql))
    }
}

/// Where a text is, or would be: by its ends and its length. `None` if it is too short to be of use.
#[inline]
fn place(text: &[u8]) -> Option<usize> {
    let front = u64::from_le_bytes(*text.first_chunk()?);
    let back = u64::from_le_bytes(*text.last_chunk()?);
    let mixed = front ^ back.rotate_left(29) ^ text.len() as u64;
    Some((mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 55) as usize % PLACES)
}

#[test]
fn a_text_is_the_same_the_second_time() {
    let mut splits = Splits::default();
    let long = format!("S_2: select {}", "x".repeat(TEXT_BYTES_MAX));
    for (text, name, sql) in [
        ("S_1: select 1", "S_1", "select 1"),
        ("<unnamed>: select 1", "", "select 1"),
        (long.as_str(), "S_2", &long[5..]),
    ] {
        for _ in 0..2 {
            let expected = (name.as_bytes(), Hashed::new(sql.as_bytes()));
            assert_eq!(splits.of(text.as_bytes()), Some(expected), "{text}");
        }
    }
    for doubtful in ["S_1/C_1: select 1", "a b: select 1", "S_1: x: select 1", "S_1"] {
        assert_eq!(splits.of(doubtful.as_bytes()), None, "{doubtful}");
    }
}
