//! The group of unix sockets, by name or number.

use std::fs;

use super::StartError;

/// The number of a group.
///
/// # Errors
///
/// There is no such group in `/etc/group`. Those of a directory service are not looked for: their
/// numbers can be given.
pub(super) fn number(name: &str) -> Result<u32, StartError> {
    let wrong = |text: &str| StartError::Group { name: name.to_owned(), text: text.to_owned() };
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let groups = fs::read_to_string("/etc/group").map_err(|error| wrong(&error.to_string()))?;
    find(&groups, name).ok_or_else(|| wrong("it is not in /etc/group; a number will do as well"))
}

/// Finds a group's line, `name:password:gid:members`, as group(5) has it.
fn find(groups: &str, name: &str) -> Option<u32> {
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?
    })
}

#[test]
fn groups_are_found_by_name_and_by_number() {
    let groups = "root:x:0:\nssl-cert:x:110:postgres\nbroken\n";
    assert_eq!(find(groups, "ssl-cert"), Some(110));
    assert_eq!(find(groups, "ssl"), None);
    assert_eq!(find(groups, "broken"), None);
    assert_eq!(number("4711").unwrap(), 4711);
    let error = number("no such group").unwrap_err().to_string();
    assert!(error.contains("a number will do"), "{error}");
}
