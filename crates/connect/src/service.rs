//! The connection service file: named groups of keywords.
//!
//! ```text
//! # comment
//! [name]
//! keyword=value
//! ```
//!
//! Source: PostgreSQL manual, "The Connection Service File"; where it is silent, `parseServiceInfo`
//! in `fe-connect.c`.

use std::{fs, io, path::Path};

use crate::{
    environment::Environment,
    resolve_error::{ResolveError, ServiceProblem},
    setting_origin::SettingOrigin,
    settings::KeywordValues,
};

/// Returns the keyword values of the service `name`.
///
/// The user's own file takes precedence; the system's file is read only if the user's does not
/// define the service. `file`, the value of `servicefile` or `PGSERVICEFILE`, replaces
/// `~/.pg_service.conf` as the user's file; it must be readable, while the files in the default
/// locations need not exist.
pub(crate) fn find(
    name: &str,
    file: Option<&str>,
    environment: &Environment,
) -> Result<KeywordValues, ResolveError> {
    let own = match file {
        Some(file) => read_section(Path::new(file), name)?,
        None => match environment.home_file(".pg_service.conf") {
            Some(path) => read_section_if_there(&path, name)?,
            None => None,
        },
    };
    let found = match own {
        Some(settings) => Some(settings),
        None => read_section_if_there(&environment.system_service_file(), name)?,
    };
    found.ok_or_else(|| ResolveError::ServiceNotFound { service: name.to_owned() })
}

fn read_section_if_there(path: &Path, name: &str) -> Result<Option<KeywordValues>, ResolveError> {
    match read_section(path, name) {
        Err(ResolveError::ServiceFile { source, .. })
            if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            Ok(None)
        }
        other => other,
    }
}

/// Reads the section with this name; `None` if the file has none.
fn read_section(path: &Path, name: &str) -> Result<Option<KeywordValues>, ResolveError> {
    let unreadable = |source| ResolveError::ServiceFile { path: path.to_owned(), source };
    let bytes = fs::read(path).map_err(unreadable)?;
    let text = String::from_utf8(bytes).map_err(|error| {
        unreadable(io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()))
    })?;
    parse(&text, name).map_err(|(line, problem)| ResolveError::ServiceLine {
        path: path.to_owned(),
        line,
        problem,
    })
}

/// Parses the section with this name. Other sections are not checked. The first value of a keyword
/// is used.
fn parse(text: &str, name: &str) -> Result<Option<KeywordValues>, (usize, ServiceProblem)> {
    let mut section: Option<KeywordValues> = None;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(header) = line.strip_prefix('[') {
            if section.is_some() {
                break;
            }
            // As in libpq, text after the bracket is ignored.
            let ours = header.strip_prefix(name).is_some_and(|rest| rest.starts_with(']'));
            section = ours.then(KeywordValues::default);
        } else if let Some(settings) = &mut section {
            store(settings, line).map_err(|problem| (index + 1, problem))?;
        }
    }
    Ok(section)
}

fn store(settings: &mut KeywordValues, line: &str) -> Result<(), ServiceProblem> {
    if line.starts_with("ldap://") {
        return Err(ServiceProblem::Ldap);
    }
    let (keyword, value) = line.split_once('=').ok_or(ServiceProblem::Syntax)?;
    if matches!(keyword, "service" | "servicefile") {
        return Err(ServiceProblem::Nested);
    }
    let mut one = KeywordValues::default();
    one.set(keyword, value, SettingOrigin::Service)
        .map_err(|_| ServiceProblem::unknown_keyword(keyword))?;
    settings.underlay(one);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# ours\n\
                        [test]\n\
                        host=db0\n\
                        \n\
                        [prod]  \n\
                        # the first\n\
                        \x20 host=db1  \n\
                        host=db2\n\
                        password=a b=c\n\
                        [later]\n\
                        this is not judged\n";

    fn read(text: &str, name: &str) -> Option<Vec<(&'static str, String)>> {
        let settings = parse(text, name).unwrap()?;
        let value = |name| settings.value(name).unwrap_or_default().to_owned();
        Some(settings.names().map(|name| (name, value(name))).collect())
    }

    #[test]
    fn section_stops_at_next_header() {
        let expected = vec![("host", "db1".to_owned()), ("password", "a b=c".to_owned())];
        assert_eq!(read(FILE, "prod"), Some(expected));
        assert_eq!(read(FILE, "test"), Some(vec![("host", "db0".to_owned())]));
        assert_eq!(read(FILE, "pro"), None);
        assert_eq!(read(FILE, "none"), None);
        assert_eq!(read("[a]\n", "a"), Some(vec![]));
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_text_is_parsed_or_refused_with_line_number(text in r"([\[\]a=#\n ]|host){0,40}") {
            if let Err((line, _)) = parse(&text, "a") {
                proptest::prop_assert!((1..=text.lines().count()).contains(&line));
            }
        }
    }

    #[test]
    fn invalid_line_is_reported_by_number() {
        let error = |text| parse(text, "a").err().unwrap();
        assert_eq!(error("[a]\nhost"), (2, ServiceProblem::Syntax));
        assert_eq!(error("[a]\n\nservice=b"), (3, ServiceProblem::Nested));
        assert_eq!(error("[a]\nldap://x/y"), (2, ServiceProblem::Ldap));
        let unknown = ServiceProblem::UnknownKeyword {
            keyword: "hosst".to_owned(),
            suggestion: Some("host"),
        };
        assert_eq!(error("[a]\nhosst=b"), (2, unknown));
    }
}
