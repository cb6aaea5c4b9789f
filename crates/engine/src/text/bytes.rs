//! The byte-level alphabet of GPT-2: every byte has a printable character.

/// Printable bytes stand for themselves; the 68 others, in order, for U+0100 and up (`bytes_to_unicode` of GPT-2).
pub(super) fn byte_of_char(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => Some(code as u8),
        code @ 0x100..=0x120 => Some((code - 0x100) as u8),
        code @ 0x121..=0x142 => Some((code - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// Bytes arriving in pieces to text, equal to `String::from_utf8_lossy` of all of them together.
#[derive(Debug, Default)]
pub(super) struct Utf8Stream {
    /// Start of a character whose rest may still come: at most 3 bytes between two calls.
    pending: Vec<u8>,
}

impl Utf8Stream {
    /// Room for the bytes to come; follow with [`Utf8Stream::take`].
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.pending
    }

    /// Everything that is decided by now.
    pub(super) fn take(&mut self) -> String {
        let mut text = String::new();
        let mut rest = &self.pending[..];
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(e) => {
                    let (valid, after) = rest.split_at(e.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    rest = after;
                    let Some(n_bad) = e.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[n_bad..];
                }
            }
        }
        let n_done = self.pending.len() - rest.len();
        self.pending.drain(..n_done);
        text
    }

    /// What is left can no longer be completed.
    pub(super) fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_covers_every_byte_once() {
        let mut bytes: Vec<u8> =
            (0..0x200).filter_map(char::from_u32).filter_map(byte_of_char).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!(byte_of_char('Ġ'), Some(b' '), "the best known one");
        assert_eq!(byte_of_char('Ċ'), Some(b'\n'));
    }
}
