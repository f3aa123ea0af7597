//! The connection service file: named groups of keywords.
//!
//! ```text
//! # comment
//! [name]
//! keyword=value
//! ```
//!
//! Source: PostgreSQL manual, "The Connection Service File"; `parseServiceInfo` in `fe-connect.c`
//! decides what it leaves open.

use std::{fs, io, path::Path};

use crate::{
    environment::Environment,
    resolve_error::{ResolveError, ServiceProblem},
    settings::{Origin, Settings},
};

/// The keywords of the service called `name`.
///
/// The user's own file goes before the one of the system, which is asked only if the first does not
/// define the service. `file` is what `PGSERVICEFILE` or `servicefile` names; it must be readable,
/// while the files at the usual places need not be there.
pub(crate) fn find(
    name: &str,
    file: Option<&str>,
    environment: &Environment,
) -> Result<Settings, ResolveError> {
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

fn read_section_if_there(path: &Path, name: &str) -> Result<Option<Settings>, ResolveError> {
    match read_section(path, name) {
        Err(ResolveError::ServiceFile { source, .. })
            if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            Ok(None)
        }
        other => other,
    }
}

/// The section of that name; `None` if the file has none.
fn read_section(path: &Path, name: &str) -> Result<Option<Settings>, ResolveError> {
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

/// Reads the section of that name. Only its own lines are judged; the first value of a keyword
/// stays.
fn parse(text: &str, name: &str) -> Result<Option<Settings>, (usize, ServiceProblem)> {
    let mut section: Option<Settings> = None;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(header) = line.strip_prefix('[') {
            if section.is_some() {
                break;
            }
            // As libpq has it, what follows the bracket does not matter.
            let ours = header.strip_prefix(name).is_some_and(|rest| rest.starts_with(']'));
            section = ours.then(Settings::default);
        } else if let Some(settings) = &mut section {
            store(settings, line).map_err(|problem| (index + 1, problem))?;
        }
    }
    Ok(section)
}

fn store(settings: &mut Settings, line: &str) -> Result<(), ServiceProblem> {
    if line.starts_with("ldap://") {
        return Err(ServiceProblem::Ldap);
    }
    let (keyword, value) = line.split_once('=').ok_or(ServiceProblem::Syntax)?;
    if matches!(keyword, "service" | "servicefile") {
        return Err(ServiceProblem::Nested);
    }
    let mut one = Settings::default();
    one.set(keyword, value, Origin::Service)
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
    fn a_section_ends_where_the_next_begins() {
        let expected = vec![("host", "db1".to_owned()), ("password", "a b=c".to_owned())];
        assert_eq!(read(FILE, "prod"), Some(expected));
        assert_eq!(read(FILE, "test"), Some(vec![("host", "db0".to_owned())]));
        assert_eq!(read(FILE, "pro"), None);
        assert_eq!(read(FILE, "none"), None);
        assert_eq!(read("[a]\n", "a"), Some(vec![]));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused_at_a_line_of_it(text in r"([\[\]a=#\n ]|host){0,40}") {
            if let Err((line, _)) = parse(&text, "a") {
                proptest::prop_assert!((1..=text.lines().count()).contains(&line));
            }
        }
    }

    #[test]
    fn a_bad_line_is_named_by_its_number() {
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
