//! The group that owns the unix sockets, given by name or GID.

use std::fs;

use super::PoolerStartError;

/// Returns the GID of a group, given by name or GID.
///
/// # Errors
///
/// `/etc/group` has no such group, or cannot be read. Groups of a directory service are not looked
/// up, but can be given by GID.
pub(super) fn gid(name: &str) -> Result<u32, PoolerStartError> {
    let wrong =
        |text: &str| PoolerStartError::Group { name: name.to_owned(), text: text.to_owned() };
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let groups = fs::read_to_string("/etc/group")
        .map_err(|error| wrong(&format!("cannot read /etc/group: {error}")))?;
    find_gid(&groups, name)
        .ok_or_else(|| wrong("it is not in /etc/group; a GID can be used instead"))
}

/// Returns the GID from a group's line, `name:password:gid:members`; see group(5).
fn find_gid(groups: &str, name: &str) -> Option<u32> {
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?
    })
}

#[test]
fn group_is_found_by_name_or_gid() {
    let groups = "root:x:0:\nssl-cert:x:110:postgres\nbroken\n";
    assert_eq!(find_gid(groups, "ssl-cert"), Some(110));
    assert_eq!(find_gid(groups, "ssl"), None);
    assert_eq!(find_gid(groups, "broken"), None);
    assert_eq!(gid("4711").unwrap(), 4711);
    let error = gid("no such group").unwrap_err().to_string();
    assert!(error.contains("a GID can be used"), "{error}");
}
