//! Fields of a prefix that spaces fill up, as `%-12u` and `%8p` do: told by sums that stay the same.
//!
//! Where the length of a value and the number of spaces behind it have the same sum in every line, the
//! spaces fill it up from behind; likewise for those before it. A longer value than the width has no
//! more than the prefix' own space.

use super::Head;

/// Which pieces of heads that are split alike are filled up, and which spaces between them do it.
pub(super) struct Padding {
    pieces: Vec<Filled>,
}

/// How a piece is filled up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filled {
    /// It is not. What stands between keeps its spaces.
    No,
    /// `%-12u`: spaces behind.
    Behind(usize),
    /// `%12u`: spaces before.
    Before(usize),
    /// It stands between, and so many of its spaces are its own, at the front and at the end, where others
    /// fill up its neighbours.
    Between { front: Option<usize>, end: Option<usize> },
}

/// What a column of values is filled up to, and how many spaces beside are the prefix' own.
struct Room {
    width: usize,
    own: usize,
}

impl Padding {
    /// Nothing is filled up.
    pub(super) fn none(heads: &[&Head<'_>]) -> Self {
        Self { pieces: vec![Filled::No; heads[0].pieces.len()] }
    }

    /// Looks at every place where the number of spaces differs.
    pub(super) fn of(heads: &[&Head<'_>]) -> Self {
        let mut padding = Self::none(heads);
        // What stands in front of all fields fills up none.
        for at in 1..padding.pieces.len() {
            padding.look_at(at, heads);
        }
        padding
    }

    fn look_at(&mut self, at: usize, heads: &[&Head<'_>]) {
        let texts = || heads.iter().map(|head| head.pieces[at].1);
        let values = |at: usize| heads.iter().map(move |head| head.pieces[at].1.len());
        let leading: Vec<_> = texts().map(|it| it.len() - it.trim_ascii_start().len()).collect();
        let trailing: Vec<_> = texts().map(|it| it.len() - it.trim_ascii_end().len()).collect();
        let is_space = texts().all(|text| text.trim_ascii().is_empty());
        let both = || values(at - 1).zip(values(at + 1)).map(|(one, other)| one + other);
        let has_next = at + 1 < self.pieces.len();
        let behind = Room::of(values(at - 1), &leading, is_space);
        // Spaces alone fill up one neighbour, or both together.
        let ahead = match &behind {
            Some(_) if is_space => None,
            _ if has_next => Room::of(values(at + 1), &trailing, is_space),
            _ => None,
        };
        if behind.is_none() && ahead.is_none() {
            if is_space && has_next {
                self.divide(at, Room::of(both(), &leading, true), values(at - 1).max());
            }
            return;
        }
        if let Some(room) = &behind {
            self.pieces[at - 1] = Filled::Behind(room.width);
        }
        if let Some(room) = &ahead {
            self.pieces[at + 1] = Filled::Before(room.width);
        }
        let own = |room: Option<Room>| room.map(|room| room.own);
        self.pieces[at] = Filled::Between { front: own(behind), end: own(ahead) };
    }

    /// Divides room that two values share: the longest on the left says where they meet.
    fn divide(&mut self, at: usize, room: Option<Room>, longest: Option<usize>) {
        let (Some(room), Some(longest)) = (room, longest) else { return };
        self.pieces[at - 1] = Filled::Behind(longest);
        self.pieces[at] = Filled::Between { front: Some(room.own), end: None };
        self.pieces[at + 1] = Filled::Before(room.width.saturating_sub(longest));
    }

    /// The escape of a piece, with its width.
    pub(super) fn padded(&self, at: usize, escape: &str) -> String {
        match (self.pieces[at], escape.strip_prefix('%')) {
            (Filled::Behind(width), Some(letter)) => format!("%-{width}{letter}"),
            (Filled::Before(width), Some(letter)) => format!("%{width}{letter}"),
            _ => escape.to_owned(),
        }
    }

    /// What stands between pieces, without the spaces that fill these up.
    pub(super) fn without(&self, at: usize, text: &[u8]) -> Vec<u8> {
        let Filled::Between { front, end } = self.pieces[at] else { return text.to_vec() };
        let mut text = text.to_vec();
        if let Some(own) = front {
            text = [&b" ".repeat(own), text.trim_ascii_start()].concat();
        }
        if let Some(own) = end {
            text = [text.trim_ascii_end(), &b" ".repeat(own)].concat();
        }
        text
    }
}

impl Room {
    /// The room of values with so many spaces beside; `None` if these do not fill it up.
    fn of(values: impl Iterator<Item = usize>, spaces: &[usize], is_space: bool) -> Option<Self> {
        let least = *spaces.iter().min()?;
        let sums: Vec<_> = values.zip(spaces).map(|(value, more)| (value + more, *more)).collect();
        let room = sums.iter().map(|(sum, _)| *sum).min()?;
        let is_varied = spaces.iter().any(|more| *more != least);
        // What is longer than the room has no more than the prefix' own spaces.
        let fits = sums.iter().all(|(sum, more)| *sum == room || *more == least);
        let is_exceeded = sums.iter().any(|(sum, _)| *sum > room);
        let own = match is_exceeded {
            true => least,
            false if is_space => least.min(1),
            false => 0,
        };
        (is_varied && fits).then(|| Self { width: room - own, own })
    }
}

/// A text in which each run of spaces is one space, so that texts compare equal whatever is filled up.
pub(super) fn with_single_spaces(text: &[u8]) -> Vec<u8> {
    let mut single = text.to_vec();
    single.dedup_by(|one, other| *one == b' ' && *other == b' ');
    single
}
