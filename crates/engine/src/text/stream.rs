use super::bytes::Utf8Stream;
use super::{ThoughtState, ThoughtTags, Tokenizer};

/// Text that became certain, to append. Either part may be empty; within one piece the order of the two is lost.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Piece {
    pub text: String,
    /// Reasoning, the tags around it left out.
    pub thought: String,
}

impl Piece {
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.thought.is_empty()
    }
}

/// Text of a reply while its committed tokens arrive.
///
/// Never shows half a character or half a think tag: what may still become one is held back until the next token
/// decides. All pieces together are what decoding all ids at once gives, think tags and special tokens left out; the
/// tags of a tool call stay, special or not.
/// Work per token does not grow with the reply.
#[derive(Debug)]
pub struct TextStream {
    tokenizer: Tokenizer,
    bytes: Decoding,
    tags: Option<TagIds>,
    inside: bool,
    /// Decoded text that could be the start of a tag.
    held: String,
}

#[derive(Debug)]
struct TagIds {
    tags: ThoughtTags,
    /// The tags as single tokens, if the vocabulary has them.
    open: Option<u32>,
    close: Option<u32>,
}

impl TextStream {
    pub fn new(tokenizer: &Tokenizer, thought: ThoughtState) -> Self {
        let tags = thought.tags.map(|tags| TagIds {
            open: tokenizer.token_id(&tags.open),
            close: tokenizer.token_id(&tags.close),
            tags,
        });
        let bytes = if tokenizer.is_byte_level() {
            Decoding::Bytes(Utf8Stream::default())
        } else {
            Decoding::Window(Window::default())
        };
        Self {
            tokenizer: tokenizer.clone(),
            bytes,
            tags,
            inside: thought.inside,
            held: String::new(),
        }
    }

    /// Takes the next committed tokens.
    pub fn push(&mut self, ids: &[u32]) -> Piece {
        let mut piece = Piece::default();
        for &id in ids {
            match self.tags.as_ref().and_then(|tags| tags.opens(id)) {
                Some(inside) => {
                    self.flush(&mut piece);
                    self.inside = inside;
                }
                None => {
                    let text = self.bytes.push(&self.tokenizer, id);
                    self.route(&text, &mut piece);
                }
            }
        }
        piece
    }

    /// The reply is over: whatever was held back. Bytes that never became a character show as U+FFFD.
    pub fn finish(&mut self) -> Piece {
        let mut piece = Piece::default();
        self.flush(&mut piece);
        piece
    }

    fn flush(&mut self, piece: &mut Piece) {
        let text = self.bytes.finish(&self.tokenizer);
        self.route(&text, piece);
        let held = std::mem::take(&mut self.held);
        piece.push(self.inside, &held);
    }

    /// Sends text to its side, follows tags spelled out in it and keeps back what may become one.
    fn route(&mut self, text: &str, piece: &mut Piece) {
        let Some(TagIds { tags, .. }) = &self.tags else { return piece.push(self.inside, text) };
        if text.is_empty() {
            return;
        }
        self.held.push_str(text);
        while let Some((at, len, inside)) = tags.first_in(&self.held) {
            piece.push(self.inside, &self.held[..at]);
            self.inside = inside;
            self.held.drain(..at + len);
        }
        let keep = tags.possible_start(&self.held);
        piece.push(self.inside, &self.held[..self.held.len() - keep]);
        self.held.drain(..self.held.len() - keep);
    }
}

impl Piece {
    fn push(&mut self, inside: bool, text: &str) {
        if inside { &mut self.thought } else { &mut self.text }.push_str(text);
    }
}

impl TagIds {
    /// Whether the token is a tag, and if so whether the text after it is a thought.
    fn opens(&self, id: u32) -> Option<bool> {
        if self.open == Some(id) {
            Some(true)
        } else if self.close == Some(id) {
            Some(false)
        } else {
            None
        }
    }
}

impl ThoughtTags {
    /// Place and length in bytes of the first tag, and whether it opens.
    fn first_in(&self, text: &str) -> Option<(usize, usize, bool)> {
        let open = text.find(&self.open).map(|at| (at, self.open.len(), true));
        let close = text.find(&self.close).map(|at| (at, self.close.len(), false));
        open.into_iter().chain(close).min_by_key(|&(at, ..)| at)
    }

    /// Length in bytes of the longest end of `text` that starts a tag.
    fn possible_start(&self, text: &str) -> usize {
        let longest = self.open.len().max(self.close.len());
        let from = text.len().saturating_sub(longest);
        (from..text.len())
            .filter(|&at| text.is_char_boundary(at))
            .find(|&at| self.open.starts_with(&text[at..]) || self.close.starts_with(&text[at..]))
            .map_or(0, |at| text.len() - at)
    }
}

/// How ids become text.
#[derive(Debug)]
enum Decoding {
    /// Byte-level BPE: a token is a fixed string of bytes.
    Bytes(Utf8Stream),
    /// Everything else: text depends on the neighbours, so a few tokens before the new ones are decoded again.
    Window(Window),
}

impl Decoding {
    fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        match self {
            Self::Bytes(stream) => {
                tokenizer.push_bytes(id, stream.buffer());
                stream.take()
            }
            Self::Window(window) => window.push(tokenizer, id),
        }
    }

    fn finish(&mut self, tokenizer: &Tokenizer) -> String {
        match self {
            Self::Bytes(stream) => stream.finish(),
            Self::Window(window) => window.take(tokenizer),
        }
    }
}

/// A character of four bytes takes at most four byte tokens; more than this many undecided tokens are just bad bytes.
const MAX_UNDECIDED: usize = 8;

/// Tokens whose text was shown (`..n_shown`), kept as the left neighbours, and those after it.
#[derive(Debug, Default)]
struct Window {
    ids: Vec<u32>,
    n_shown: usize,
}

impl Window {
    fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        if tokenizer.is_hidden(id) {
            return String::new();
        }
        self.ids.push(id);
        let is_undecided = self.ids.len() - self.n_shown <= MAX_UNDECIDED;
        if is_undecided
            && self.decoded(tokenizer, self.ids.len()).ends_with(char::REPLACEMENT_CHARACTER)
        {
            return String::new();
        }
        self.take(tokenizer)
    }

    fn take(&mut self, tokenizer: &Tokenizer) -> String {
        let all = self.decoded(tokenizer, self.ids.len());
        let shown = self.decoded(tokenizer, self.n_shown);
        let n_new = self.ids.len() - self.n_shown;
        // The shown part comes out the same again, because it ends with a whole character.
        let new = all.strip_prefix(&shown).unwrap_or_default().to_owned();
        if n_new > 0 {
            self.ids.drain(..self.n_shown);
            self.n_shown = n_new;
        }
        new
    }

    /// Text of the first `n` ids, none of them hidden. A decoder that fails on single tokens has no text for them.
    fn decoded(&self, tokenizer: &Tokenizer, n: usize) -> String {
        tokenizer.decode(&self.ids[..n], false).unwrap_or_default()
    }
}
