//! [`Command`]: what a statement begins with.

use std::fmt;

use crate::lexer::{Lexer, TokenKind};

macro_rules! commands {
    ($($(#[$doc:meta])* $variant:ident = $name:literal: $($words:literal),+;)*) => {
        /// What sort of statement a text begins with, by its leading keyword.
        ///
        /// Only the first statement of the text is looked at, and only its first words: a `WITH`
        /// may hold a DELETE, and an `EXPLAIN` may execute.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Command {
            $($(#[$doc])* $variant,)*
            /// No statement at all: nothing but white space, comments and semicolons.
            Empty,
            /// A word that the table of commands does not hold.
            Other,
        }

        impl Command {
            /// The keyword, in upper case.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                    Self::Empty => "",
                    Self::Other => "OTHER",
                }
            }

            fn from_word(word: &[u8]) -> Self {
                $($(if word.eq_ignore_ascii_case($words.as_bytes()) {
                    return Self::$variant;
                })+)*
                Self::Other
            }
        }
    };
}

commands! {
    /// `SELECT`, with or without parentheses around it.
    Select = "SELECT": "select";
    /// `INSERT`.
    Insert = "INSERT": "insert";
    /// `UPDATE`.
    Update = "UPDATE": "update";
    /// `DELETE`.
    Delete = "DELETE": "delete";
    /// `MERGE`.
    Merge = "MERGE": "merge";
    /// `WITH`, whatever the main statement is.
    With = "WITH": "with";
    /// `VALUES`.
    Values = "VALUES": "values";
    /// `TABLE`.
    Table = "TABLE": "table";
    /// `BEGIN` or `START TRANSACTION`.
    Begin = "BEGIN": "begin", "start";
    /// `COMMIT` or `END`.
    Commit = "COMMIT": "commit", "end";
    /// `ROLLBACK` or `ABORT`, also `ROLLBACK TO`.
    Rollback = "ROLLBACK": "rollback", "abort";
    /// `SAVEPOINT`.
    Savepoint = "SAVEPOINT": "savepoint";
    /// `RELEASE`.
    Release = "RELEASE": "release";
    /// `PREPARE`, of a statement or of a transaction.
    Prepare = "PREPARE": "prepare";
    /// `EXECUTE`.
    Execute = "EXECUTE": "execute";
    /// `DEALLOCATE`.
    Deallocate = "DEALLOCATE": "deallocate";
    /// `DECLARE`.
    Declare = "DECLARE": "declare";
    /// `FETCH` or `MOVE`.
    Fetch = "FETCH": "fetch", "move";
    /// `CLOSE`.
    Close = "CLOSE": "close";
    /// `COPY`.
    Copy = "COPY": "copy";
    /// `SET`.
    Set = "SET": "set";
    /// `RESET`.
    Reset = "RESET": "reset";
    /// `SHOW`.
    Show = "SHOW": "show";
    /// `DISCARD`.
    Discard = "DISCARD": "discard";
    /// `EXPLAIN`.
    Explain = "EXPLAIN": "explain";
    /// `LOCK`.
    Lock = "LOCK": "lock";
    /// `LISTEN`.
    Listen = "LISTEN": "listen";
    /// `UNLISTEN`.
    Unlisten = "UNLISTEN": "unlisten";
    /// `NOTIFY`.
    Notify = "NOTIFY": "notify";
    /// `CALL`.
    Call = "CALL": "call";
    /// `DO`.
    Do = "DO": "do";
    /// `TRUNCATE`.
    Truncate = "TRUNCATE": "truncate";
    /// `CREATE`.
    Create = "CREATE": "create";
    /// `ALTER`.
    Alter = "ALTER": "alter";
    /// `DROP`.
    Drop = "DROP": "drop";
    /// `VACUUM`.
    Vacuum = "VACUUM": "vacuum";
    /// `ANALYZE`.
    Analyze = "ANALYZE": "analyze", "analyse";
}

impl Command {
    /// Of the first statement in `sql`. Comments, semicolons and opening parentheses before it are
    /// skipped.
    ///
    /// ```
    /// use howdah_sql::Command;
    ///
    /// assert_eq!(Command::of(b"/* app */ (select 1) union select 2"), Command::Select);
    /// assert_eq!(Command::of(b"start transaction read only"), Command::Begin);
    /// ```
    pub fn of(sql: &[u8]) -> Self {
        let first = Lexer::new(sql).find(|token| match token.kind {
            TokenKind::Space | TokenKind::Comment => false,
            TokenKind::Punctuation => !matches!(token.text, b"(" | b";"),
            _ => true,
        });
        match first {
            None => Self::Empty,
            Some(token) if token.kind == TokenKind::Word => Self::from_word(token.text),
            Some(_) => Self::Other,
        }
    }

    /// Whether plain EXPLAIN accepts a statement that begins so.
    ///
    /// Source: manual, EXPLAIN, without `CREATE … AS`, which is a command of many other uses, and
    /// `EXECUTE`, which depends on the session.
    pub fn is_explainable(self) -> bool {
        use Command::{Declare, Delete, Insert, Merge, Select, Table, Update, Values, With};
        matches!(self, Select | Insert | Update | Delete | Merge | With | Values | Table | Declare)
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[test]
fn the_leading_word_counts() {
    let cases: [(&[u8], Command); 12] = [
        (b"select 1", Command::Select),
        (b" -- begin\n /* commit /* x */ */ Update t set a = 1", Command::Update),
        (b"((select 1))", Command::Select),
        (b";;begin", Command::Begin),
        (b"END", Command::Commit),
        (b"abort", Command::Rollback),
        (b"with x as (delete from t returning 1) select 1", Command::With),
        (b"selection", Command::Other),
        (b"'select'", Command::Other),
        (b"\"select\"", Command::Other),
        (b"", Command::Empty),
        (b" ; -- nothing", Command::Empty),
    ];
    for (sql, command) in cases {
        assert_eq!(Command::of(sql), command, "{}", String::from_utf8_lossy(sql));
    }
}
