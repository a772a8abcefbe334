import { useEffect, useState } from "preact/hooks";

import { Brand } from "../components/Brand";
import { ErrorNote } from "../components/ErrorNote";
import { Field } from "../components/Field";
import { LanguageSwitch } from "../components/LanguageSwitch";
import { PageTitle } from "../components/PageTitle";
import { PasswordField } from "../components/PasswordField";
import { span } from "../format";
import { messages } from "../i18n";
import { leavesDashboard } from "../next";
import { now, serverNow } from "../state/clock";
import { navigate } from "../state/router";
import { nextAfterSignIn, session, sessionExpired, signIn } from "../state/session";
import { useTask } from "../state/task";

export function LoginPage() {
  const text = messages.value.login;
  const user = session.value?.user;
  const next = nextAfterSignIn();
  useEffect(() => {
    if (user && !leavesDashboard(next)) navigate(next, { replace: true });
  }, [user, next]);
  return (
    <div class="login">
      <header class="login-top">
        <Brand />
        <LanguageSwitch />
      </header>
      <main class="login-card">
        <PageTitle title={text.title} />
        {user ? <AlreadySignedIn name={user.username} next={next} /> : <LoginForm />}
      </main>
    </div>
  );
}

/**
 * Shown if the gateway redirected here although the session is valid. A link avoids a redirect
 * loop.
 */
function AlreadySignedIn({ name, next }: { name: string; next: string }) {
  const text = messages.value.login;
  return (
    <>
      <p>{text.already(name)}</p>
      <a class="button button-primary" href={next}>
        {text.proceed}
      </a>
    </>
  );
}

function LoginForm() {
  const text = messages.value.login;
  const task = useTask();
  const [username, setUsername] = useState("");
  const [password, setPassword] = useState("");
  const [retryAt, setRetryAt] = useState(0);

  const retryAfter = task.error?.retryAfterSeconds;
  useEffect(() => {
    setRetryAt(retryAfter ? serverNow() + retryAfter * 1000 : 0);
  }, [task.error]);
  const waitSeconds = Math.floor((retryAt - now.value) / 1000);

  const submit = (event: Event) => {
    event.preventDefault();
    void task.run(() => signIn(username.trim(), password));
  };
  return (
    <form onSubmit={submit}>
      <p class="muted">{sessionExpired.value ? text.expired : text.lead}</p>
      <Field label={text.username}>
        {(ids) => (
          <input
            {...ids}
            type="text"
            required
            // biome-ignore lint/a11y/noAutofocus: the page has no other purpose than this form
            autoFocus
            autoComplete="username"
            autoCapitalize="none"
            spellcheck={false}
            data-testid="login-username"
            value={username}
            onInput={(event) => setUsername(event.currentTarget.value)}
          />
        )}
      </Field>
      <PasswordField label={text.password} value={password} onInput={setPassword} testId="login-password" />
      <ErrorNote error={task.error} />
      {waitSeconds > 0 && (
        <p class="muted" role="timer" aria-live="off">
          {text.wait(span(waitSeconds))}
        </p>
      )}
      <button
        type="submit"
        class="button button-primary button-wide"
        aria-disabled={task.busy}
        data-testid="login-submit"
      >
        {task.busy ? text.submitting : text.submit}
      </button>
    </form>
  );
}
