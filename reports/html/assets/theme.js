// Light or dark: the system's choice until the reader makes one.

const KEY = "trace-analyze-theme";

function remembered() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // files on disk may have no storage
  }
}

/** Whether the page is dark now. */
export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

export function startTheme() {
  const button = document.getElementById("theme");
  const label = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
  };
  const chosen = remembered();
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
  button.hidden = false;
  label();
  button.addEventListener("click", () => {
    const next = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem(KEY, next);
    } catch {
      // not remembered, still applied
    }
    label();
    document.dispatchEvent(new Event("themechange"));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    label();
    document.dispatchEvent(new Event("themechange"));
  });
}
