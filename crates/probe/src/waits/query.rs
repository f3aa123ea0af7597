//! Reads the statement that a process is executing from its memory.
//!
//! `debug_query_string` points to the text of the last statement from the client, and is 0 between
//! statements; in a parallel worker, it is the leader's. The server may change both at any time, so
//! a text is accepted only if the pointer was the same before and after. Unreadable texts are
//! ignored.

use std::{collections::HashMap, fmt, sync::Arc};

use howdah_inspect::ProcessMemory;

/// Id of a statement's text, valid for the [`QueryTexts`] or the sampler that returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueryId(u32);

/// Options for reading statements. See [`SamplerOptions::queries`](super::SamplerOptions::queries).
pub struct QueryOptions {
    /// Maximum number of bytes read of a text.
    pub text_bytes: usize,
    /// Applied to every text before comparison, e.g. to remove literals.
    pub normalise: Box<dyn FnMut(&str) -> String + Send>,
    /// Maximum number of distinct texts; later ones are all [`QueryId::OTHER`].
    pub texts_max: usize,
}

/// Texts of statements, each stored once and identified by a [`QueryId`].
#[derive(Debug)]
pub struct QueryTexts {
    options: QueryOptions,
    texts: Vec<Arc<str>>,
    ids: HashMap<Arc<str>, QueryId>,
}

/// Reads and interns the statements of a server's processes.
#[derive(Debug)]
pub(super) struct QueryReader {
    pointer: u64,
    texts: QueryTexts,
}

impl QueryId {
    /// Stands for every text after the first [`QueryOptions::texts_max`].
    pub const OTHER: Self = Self(u32::MAX);
}

impl Default for QueryOptions {
    /// Reads 1024 bytes of each text, unchanged, and at most 10,000 texts.
    fn default() -> Self {
        Self { text_bytes: 1024, normalise: Box::new(str::to_owned), texts_max: 10_000 }
    }
}

impl fmt::Debug for QueryOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueryOptions").field("text_bytes", &self.text_bytes).finish_non_exhaustive()
    }
}

impl QueryReader {
    /// Creates a reader. `pointer` is the address of `debug_query_string`, the same in all
    /// processes of a server.
    pub(super) fn new(pointer: u64, options: QueryOptions) -> Self {
        Self { pointer, texts: QueryTexts::new(options) }
    }

    /// Reads the statement that a process is executing, with three system calls.
    pub(super) fn read(&mut self, memory: ProcessMemory) -> Option<QueryId> {
        let address = memory.pointer(self.pointer).ok().filter(|&address| address != 0)?;
        let text = memory.text(address, self.texts.options.text_bytes).ok()?;
        let is_still = memory.pointer(self.pointer).is_ok_and(|after| after == address);
        (is_still && is_text(&text)).then(|| self.texts.intern(&String::from_utf8_lossy(&text)))
    }

    pub(super) fn text(&self, id: QueryId) -> Option<&str> {
        self.texts.text(id)
    }
}

impl QueryTexts {
    /// Creates an empty table.
    pub fn new(options: QueryOptions) -> Self {
        Self { options, texts: Vec::new(), ids: HashMap::new() }
    }

    /// Returns the text of an id; `None` for [`QueryId::OTHER`].
    pub fn text(&self, id: QueryId) -> Option<&str> {
        self.texts.get(id.0 as usize).map(|text| &**text)
    }

    /// Normalises a text and returns its id.
    pub fn intern(&mut self, text: &str) -> QueryId {
        let text = (self.options.normalise)(text);
        if let Some(&id) = self.ids.get(&*text) {
            return id;
        }
        if self.texts.len() >= self.options.texts_max.min(QueryId::OTHER.0 as usize) {
            return QueryId::OTHER;
        }
        let id = QueryId(u32::try_from(self.texts.len()).unwrap_or(QueryId::OTHER.0));
        let text: Arc<str> = text.into();
        self.texts.push(Arc::clone(&text));
        self.ids.insert(text, id);
        id
    }
}

/// Whether the bytes may be a statement: freed memory that was reused usually has bytes that
/// statements do not contain.
fn is_text(text: &[u8]) -> bool {
    let is_control = |byte: &u8| *byte < b' ' && !matches!(byte, b'\t' | b'\n' | b'\r' | b'\x0c');
    !text.is_empty() && !text.iter().any(is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_memory() -> ProcessMemory {
        ProcessMemory::for_pid(std::process::id())
    }

    #[test]
    fn query_text_is_read_through_its_pointer() {
        let text = b"SELECT 'M\xfcller'\0";
        let pointer = text.as_ptr();
        let mut queries = QueryReader::new(&raw const pointer as u64, QueryOptions::default());
        let id = queries.read(own_memory()).expect("query text is readable");
        assert_eq!(queries.text(id), Some("SELECT 'M\u{fffd}ller'"));
        assert_eq!(queries.read(own_memory()), Some(id));
    }

    #[test]
    fn implausible_query_text_is_none() {
        for pointer in [
            std::ptr::null(),
            0x10 as *const u8,
            c"\x7f\x01\x02".as_ptr().cast(),
            c"".as_ptr().cast(),
        ] {
            let mut queries = QueryReader::new(&raw const pointer as u64, QueryOptions::default());
            assert_eq!(queries.read(own_memory()), None);
        }
    }

    #[test]
    fn query_texts_are_bounded_in_length_and_number() {
        let options = QueryOptions { text_bytes: 10, texts_max: 1, ..QueryOptions::default() };
        let texts: [&[u8]; 2] = [b"SELECT a, b\0", b"DELETE\0"];
        let mut pointer = texts[0].as_ptr();
        let mut queries = QueryReader::new(&raw const pointer as u64, options);
        let id = queries.read(own_memory()).expect("query text is readable");
        assert_eq!(queries.text(id), Some("SELECT a, "));
        pointer = texts[1].as_ptr();
        std::hint::black_box(&mut pointer);
        assert_eq!(queries.read(own_memory()), Some(QueryId::OTHER));
        assert_eq!(queries.text(QueryId::OTHER), None);
    }
}
