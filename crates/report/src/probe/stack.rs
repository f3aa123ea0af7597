//! Renders the stacks of long events.

use std::io::{self, Write};

use howdah_probe::stacks::CallStack;

/// Writes one line per function, innermost first, and the reason if the stack is incomplete.
pub(super) fn write(out: &mut impl Write, stack: Option<&CallStack>) -> io::Result<()> {
    let Some(stack) = stack else { return Ok(()) };
    for frame in &stack.frames {
        writeln!(out, "    at {frame}")?;
    }
    match stack.end.explanation() {
        Some(remark) => writeln!(out, "    ({remark})"),
        None => Ok(()),
    }
}
