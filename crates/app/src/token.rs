//! The hub's access token: in the system's keychain, never in a file, a log or a debug print.

use crate::error;
use foretoken_protocol::{ErrorCode, TokenPlace, WireError};
use std::sync::{Mutex, MutexGuard, PoisonError};

const SERVICE: &str = "foretoken";
const ACCOUNT: &str = "hub access token";
/// What other tools of the hub read as well.
const VARIABLE: &str = "HF_TOKEN";

/// What keeps a secret for the person who is logged in.
pub trait Keychain: Send + Sync {
    /// `None` = there is none.
    fn read(&self) -> keyring::Result<Option<String>>;
    /// `None` removes it.
    fn write(&self, secret: Option<&str>) -> keyring::Result<()>;
}

/// The system's: Keychain Services on macOS, the Secret Service on Linux.
struct System;

impl System {
    fn entry() -> keyring::Result<keyring::Entry> {
        keyring::Entry::new(SERVICE, ACCOUNT)
    }
}

impl Keychain for System {
    fn read(&self) -> keyring::Result<Option<String>> {
        match Self::entry()?.get_password() {
            Ok(secret) => Ok(Some(secret)),
            Err(keyring::Error::NoEntry) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn write(&self, secret: Option<&str>) -> keyring::Result<()> {
        let entry = Self::entry()?;
        match secret {
            Some(secret) => entry.set_password(secret),
            None => match entry.delete_credential() {
                Err(keyring::Error::NoEntry) => Ok(()),
                done => done,
            },
        }
    }
}

/// Where the token is looked for and kept.
pub struct Tokens {
    environment: Option<String>,
    keychain: Option<Box<dyn Keychain>>,
    /// Asked once: a keychain may show a dialog for each question.
    known: Mutex<Option<Known>>,
}

#[derive(Clone)]
struct Known {
    token: Option<String>,
    place: TokenPlace,
}

impl Tokens {
    pub fn of_system() -> Self {
        let environment = std::env::var(VARIABLE).ok().filter(|token| !token.trim().is_empty());
        Self::new(environment, Some(Box::new(System)))
    }

    /// `environment` wins over what is stored; without a keychain a token lasts as long as this object.
    pub fn new(environment: Option<String>, keychain: Option<Box<dyn Keychain>>) -> Self {
        Self { environment, keychain, known: Mutex::new(None) }
    }

    fn known(&self) -> MutexGuard<'_, Option<Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look(&self) -> Known {
        if let Some(token) = &self.environment {
            return Known { token: Some(token.clone()), place: TokenPlace::Environment };
        }
        let mut known = self.known();
        if let Some(known) = &*known {
            return known.clone();
        }
        let read = self.keychain.as_ref().map(|keychain| keychain.read());
        let token = match read {
            Some(Ok(token)) => token,
            Some(Err(error)) => {
                tracing::debug!(%error, "the keychain was not read");
                None
            }
            None => None,
        };
        let place = if token.is_some() { TokenPlace::Keychain } else { TokenPlace::None };
        known.insert(Known { token, place }).clone()
    }

    pub fn get(&self) -> Option<String> {
        self.look().token
    }

    pub fn place(&self) -> TokenPlace {
        self.look().place
    }

    /// Keeps a token in the keychain, else in memory; `None` forgets it.
    pub fn set(&self, token: Option<&str>) -> Result<TokenPlace, WireError> {
        let token = token.map(str::trim);
        if token.is_some_and(|t| t.is_empty() || !t.bytes().all(|b| b.is_ascii_graphic())) {
            return Err(error(
                ErrorCode::InvalidOption,
                "This is no access token: a token is one word of letters and digits. Copy it again from your account's page.",
            ));
        }
        let written = self.keychain.as_ref().map(|keychain| keychain.write(token));
        let in_keychain = match written {
            Some(Ok(())) => true,
            Some(Err(error)) => {
                tracing::debug!(%error, "the keychain was not written");
                false
            }
            None => false,
        };
        let place = match (token, in_keychain) {
            (None, _) => TokenPlace::None,
            (_, true) => TokenPlace::Keychain,
            (_, false) => TokenPlace::Memory,
        };
        *self.known() = Some(Known { token: token.map(str::to_owned), place });
        Ok(self.place())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[derive(Clone, Default)]
    struct Fake(Arc<Mutex<Option<String>>>);

    impl Keychain for Fake {
        fn read(&self) -> keyring::Result<Option<String>> {
            Ok(self.0.lock().expect("no panic").clone())
        }

        fn write(&self, secret: Option<&str>) -> keyring::Result<()> {
            *self.0.lock().expect("no panic") = secret.map(str::to_owned);
            Ok(())
        }
    }

    struct Broken;

    impl Keychain for Broken {
        fn read(&self) -> keyring::Result<Option<String>> {
            Err(keyring::Error::NoEntry)
        }

        fn write(&self, _: Option<&str>) -> keyring::Result<()> {
            Err(keyring::Error::NoEntry)
        }
    }

    #[test]
    fn a_token_stays_in_the_keychain_and_the_environment_wins() {
        let keychain = Fake::default();
        let open = |environment: Option<&str>| {
            Tokens::new(environment.map(str::to_owned), Some(Box::new(keychain.clone())))
        };
        let tokens = open(None);
        assert_eq!((tokens.get(), tokens.place()), (None, TokenPlace::None));
        assert_eq!(tokens.set(Some(" hf_abc \n")).expect("kept"), TokenPlace::Keychain);
        // Another start of the program.
        let tokens = open(None);
        assert_eq!(
            (tokens.get().as_deref(), tokens.place()),
            (Some("hf_abc"), TokenPlace::Keychain)
        );
        let with = open(Some("hf_env"));
        assert_eq!(
            (with.get().as_deref(), with.place()),
            (Some("hf_env"), TokenPlace::Environment)
        );
        assert_eq!(tokens.set(None).expect("forgotten"), TokenPlace::None);
        assert_eq!((tokens.get(), open(None).get()), (None, None));
        for bad in ["", "  ", "two words", "hf_ü"] {
            assert_eq!(tokens.set(Some(bad)).expect_err("refused").code, ErrorCode::InvalidOption);
        }
    }

    #[test]
    fn without_a_keychain_it_lasts_as_long_as_the_program() {
        for keychain in [None, Some(Box::new(Broken) as Box<dyn Keychain>)] {
            let tokens = Tokens::new(None, keychain);
            assert_eq!(tokens.set(Some("hf_abc")).expect("kept"), TokenPlace::Memory);
            assert_eq!(tokens.get().as_deref(), Some("hf_abc"));
        }
    }
}
