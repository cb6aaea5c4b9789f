use foretoken_library::Library;
use std::path::{Path, PathBuf};

/// Where this installation keeps things.
#[derive(Debug, Clone)]
pub struct Paths {
    /// Chats and settings.
    pub data: PathBuf,
    pub starter: Option<PathBuf>,
    pub hub_cache: PathBuf,
    /// Folders of LM Studio's models.
    pub lm_studio: Vec<PathBuf>,
}

fn env_folder(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from)
}

impl Paths {
    /// Honours `XDG_DATA_HOME`, `HF_HUB_CACHE`, `HF_HOME` and `FORETOKEN_STARTER`. `resources` is the app bundle's folder.
    pub fn find(resources: Option<&Path>) -> Self {
        let dirs = directories::ProjectDirs::from("io.github", "foretoken", "foretoken");
        let data =
            dirs.map_or_else(|| PathBuf::from(".foretoken"), |dirs| dirs.data_dir().to_owned());
        let home =
            directories::BaseDirs::new().map(|dirs| dirs.home_dir().to_owned()).unwrap_or_default();
        let cache = env_folder("XDG_CACHE_HOME").unwrap_or_else(|| home.join(".cache"));
        let hub_cache = env_folder("HF_HUB_CACHE").unwrap_or_else(|| {
            env_folder("HF_HOME").unwrap_or_else(|| cache.join("huggingface")).join("hub")
        });
        let lm_studio =
            [".lmstudio/models", ".cache/lm-studio/models"].map(|folder| home.join(folder)).into();
        Self { starter: starter(resources, &data), data, hub_cache, lm_studio }
    }

    /// Heads that were fetched alone, a folder for each repository and commit.
    pub fn heads(&self) -> PathBuf {
        self.data.join("heads")
    }

    pub fn library(&self, folders: &[String]) -> Library {
        Library {
            starter: self.starter.clone(),
            hub_cache: self.hub_cache.clone(),
            folders: folders.iter().map(PathBuf::from).collect(),
            lm_studio: self.lm_studio.clone(),
        }
    }
}

/// The first of: what the environment says, the bundle, beside the program, a checkout above the program, the data folder.
fn starter(resources: Option<&Path>, data: &Path) -> Option<PathBuf> {
    let program = std::env::current_exe().ok();
    let above = program
        .iter()
        .flat_map(|p| p.ancestors().skip(1))
        .flat_map(|dir| [dir.join("starter"), dir.join(".starter")]);
    let checkout = cfg!(debug_assertions)
        .then(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.starter"));
    env_folder("FORETOKEN_STARTER")
        .into_iter()
        .chain(resources.map(|dir| dir.join("starter")))
        .chain(above)
        .chain(checkout)
        .chain([data.join("models/starter")])
        .find(|dir| dir.join("config.json").is_file())
}
