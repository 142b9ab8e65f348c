import java.io.File;
import java.util.Properties;
import java.util.TreeSet;
import net.i2p.data.DataHelper;

/** Prints the properties of a file as the router reads them: a key and a value on each line, separated by a tab. */
public class ReadProperties {
    public static void main(String[] arguments) throws Exception {
        Properties found = new Properties();
        DataHelper.loadProps(found, new File(arguments[0]));
        for (String key : new TreeSet<>(found.stringPropertyNames())) {
            System.out.println(key + "\t" + found.getProperty(key));
        }
    }
}
