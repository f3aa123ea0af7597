//! Detects the language of a server's messages.
//!
//! `lc_messages` translates the words that mark statements, durations and severities, and the
//! translations differ between versions of PostgreSQL. So the language of a translated log is
//! reported, but the log is not parsed.
//!
//! Source: the `po` files of PostgreSQL's server.

use std::fmt;

use serde::Serialize;

macro_rules! languages {
    ($($(#[$doc:meta])* $variant:ident = $name:literal: $($word:literal),+;)*) => {
        /// A language into which PostgreSQL's server messages are translated.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum Language { $($(#[$doc])* $variant,)* }

        impl Language {
            /// Returns the language's name in English.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Returns the language of a text that begins with the language's word for a statement,
            /// a duration, an execution or a severity.
            pub(crate) fn detect(text: &[u8]) -> Option<Self> {
                $(if [$($word),+].iter().any(|word| text.starts_with(word.as_bytes())) {
                    return Some(Self::$variant);
                })*
                None
            }
        }
    };
}

languages! {
    /// Translated in `de.po`.
    German = "German": "Anweisung: ", "Dauer: ", "Ausführen ", "FEHLER:  ", "FEHLER", "WARNUNG";
    /// Translated in `es.po`.
    Spanish = "Spanish": "sentencia: ", "duración: ", "ejecutar ", "ADVERTENCIA";
    /// Translated in `fr.po`.
    French = "French": "instruction : ", "durée : ", "exécute ", "ERREUR", "ATTENTION";
    /// Translated in `it.po`.
    Italian = "Italian": "istruzione: ", "durata: ", "esecuzione di ", "ERRORE", "FATALE";
    /// Translated in `ja.po`.
    Japanese = "Japanese": "文: ", "期間: ", "実行 ";
    /// Translated in `ka.po`.
    Georgian = "Georgian": "ოპერატორი: ", "ხანგრძლივობა: ", "გაშვება ", "ჟურნალი", "შეცდომა";
    /// Translated in `ko.po`.
    Korean = "Korean": "명령 구문: ", "실행시간: ", "쿼리실행 ", "로그", "오류";
    /// Translated in `pl.po`.
    Polish = "Polish": "wyrażenie: ", "czas trwania: ", "DZIENNIK", "BŁĄD";
    /// Translated in `pt_BR.po`.
    Portuguese = "Portuguese": "comando: ", "duração: ", "ERRO:", "AVISO";
    /// Translated in `ru.po`.
    Russian = "Russian": "продолжительность: ", "выполнение ", "СООБЩЕНИЕ", "ОШИБКА", "ВАЖНО";
    /// Translated in `sv.po`.
    Swedish = "Swedish": "sats: ", "varaktighet", "kör ", "LOGG:", "FEL:", "FATALT";
    /// Translated in `tr.po`.
    Turkish = "Turkish": "ifade: ", "süre: ", "HATA", "UYARI";
    /// Translated in `uk.po`.
    Ukrainian = "Ukrainian": "тривалість: ", "інструкція: ", "виконувати ", "ЗАПИСУВАННЯ", "ПОМИЛКА";
    /// Translated in `zh_CN.po`.
    Chinese = "Chinese": "语句: ", "执行时间: ", "执行 ", "日志", "错误", "陳述式: ";
}

impl Language {
    /// Returns the language of an unreadable log line, by its severity or its message.
    pub(crate) fn detect_in_line(line: &[u8]) -> Option<Self> {
        let line = &line[..line.len().min(LINE_BYTES)];
        let starts = memchr::memchr3_iter(b' ', b',', b'|', line).map(|at| at + 1);
        std::iter::once(0).chain(starts).find_map(|at| {
            let word = line[at..].strip_prefix(b"\"").unwrap_or(&line[at..]);
            Self::detect(word)
        })
    }
}

/// Number of bytes at the front of a line that are searched for a severity or a message.
const LINE_BYTES: usize = 512;

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[test]
fn messages_of_real_servers_identify_their_language() {
    // The texts are those that PostgreSQL 15 writes.
    for (text, language) in [
        ("Dauer: 0.562 ms", Language::German),
        ("durée : 0.562 ms, instruction : select 1", Language::French),
        ("продолжительность: 0.562 мс, оператор: select 1", Language::Russian),
        ("тривалість: 0.562 мс", Language::Ukrainian),
        ("期間: 0.562 ミリ秒  文: select 1", Language::Japanese),
        ("varaktighet 0.562 ms", Language::Swedish),
        ("执行时间: 0.562 ms 语句: select 1", Language::Chinese),
        ("실행시간: 0.562 ms", Language::Korean),
    ] {
        assert_eq!(Language::detect(text.as_bytes()), Some(language), "{text}");
    }
    assert_eq!(Language::detect(b"duration: 0.562 ms"), None);
    let line = "2026-11-20 12:43:20.896 UTC [7] al@shop ОШИБКА:  деление на ноль";
    assert_eq!(Language::detect_in_line(line.as_bytes()), Some(Language::Russian));
    let row = "2026-11-20 12:43:19.577 UTC,\"al\",\"shop\",1,,,1,,,,,\"FEHLER\",22012,x";
    assert_eq!(Language::detect_in_line(row.as_bytes()), Some(Language::German));
    assert_eq!(
        Language::detect_in_line(b"2026-11-20 12:43:20.896 UTC [7] LOG:  statement: x"),
        None
    );
}
