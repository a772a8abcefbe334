import { Icon } from "../components/Icon";
import { PageTitle } from "../components/PageTitle";
import { messages } from "../i18n";

export function NotFoundPage() {
  const text = messages.value;
  return (
    <>
      <PageTitle title={text.errors.titles.NOT_FOUND} />
      <a class="back" href="/">
        <Icon name="back" />
        {text.detail.back}
      </a>
    </>
  );
}
